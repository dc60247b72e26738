/** What a request may be, and the failure that says which parameter is not. */
import { Failure, type FailureCode } from '../../../shared/base/failure.ts';

/** What a request can be at most; from the model. */
export interface BodyLimits {
  readonly vocabSize: number;
  readonly maxModelLen: number;
  /** Keys that no document knows are refused. */
  readonly isStrict: boolean;
}

/** A refused parameter: which one, for the `param` of the error object. */
export class ParameterFailure extends Failure {
  readonly param: string | null;

  constructor(message: string, param: string | null, code: FailureCode = 'invalid_request') {
    super(code, message);
    this.param = param;
  }
}
