/** The thread that parses large bodies. */
import type { FailureCode } from '../../../shared/base/failure.ts';
import { readBody, type BodyKind, type BodyOf } from './body_kinds.ts';
import { ParameterFailure, type BodyLimits } from './parameter_failure.ts';

interface Refusal {
  readonly message: string;
  readonly param: string | null;
  readonly code: FailureCode;
}

/** What the thread does. */
export class BodyReader {
  read({ kind, bytes, limits }: { kind: BodyKind; bytes: Uint8Array; limits: BodyLimits }): {
    readonly body?: BodyOf<BodyKind>;
    readonly refused?: Refusal;
  } {
    try {
      return { body: readBody(kind, bytes, limits) };
    } catch (error) {
      if (!(error instanceof ParameterFailure)) throw error;
      return { refused: { message: error.message, param: error.param, code: error.code } };
    }
  }
}

export function start(): BodyReader {
  return new BodyReader();
}
