/** The thread that parses large bodies. */
import type { BodyKind, ParsedBody } from './body_kind.ts';
import { refusalOf, type BodyLimits, type Refusal } from './parameter_failure.ts';

/**
 * Service of the body thread: parses and validates bodies of some kinds. A ParameterFailure is returned as `refused`, because failures do
 * not cross threads.
 */
export class BodyReader {
  readonly #kinds: ReadonlyMap<string, BodyKind>;

  constructor(kinds: readonly BodyKind[]) {
    this.#kinds = new Map(kinds.map((kind) => [kind.name, kind]));
  }

  read({ kind, bytes, limits }: { kind: string; bytes: Uint8Array; limits: BodyLimits }): {
    readonly body?: ParsedBody;
    readonly refused?: Refusal;
  } {
    const known = this.#kinds.get(kind);
    if (!known) throw new Error(`no kind of body is named ${kind}`);
    try {
      return { body: known.read(bytes, limits) };
    } catch (error) {
      return { refused: refusalOf(error) };
    }
  }
}
