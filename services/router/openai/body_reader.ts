/** The thread that parses large bodies. */
import { readBody, type BodyKind, type BodyOf } from './body_kinds.ts';
import { refusalOf, type BodyLimits, type Refusal } from './parameter_failure.ts';

/**
 * Service of the body thread: parses and validates bodies. A ParameterFailure is returned as `refused`, because failures do not cross
 * threads.
 */
export class BodyReader {
  read({ kind, bytes, limits }: { kind: BodyKind; bytes: Uint8Array; limits: BodyLimits }): {
    readonly body?: BodyOf<BodyKind>;
    readonly refused?: Refusal;
  } {
    try {
      return { body: readBody(kind, bytes, limits) };
    } catch (error) {
      return { refused: refusalOf(error) };
    }
  }
}

/** Entry point of the body thread; returns the service that the thread runs. */
export function start(): BodyReader {
  return new BodyReader();
}
