/** The thread that parses large bodies. */
import { readBody, type BodyKind, type BodyOf } from './body_kinds.ts';
import { refusalOf, type BodyLimits, type Refusal } from './parameter_failure.ts';

/** What the thread does. */
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

export function start(): BodyReader {
  return new BodyReader();
}
