/** Kinds of bodies that a thread knows, by name. */
import type { BodyKind, ParsedBody } from './body_kind.ts';
import { refusalOf, type BodyLimits, type Refusal } from './parameter_failure.ts';

/** Finds kinds by their names, and reads bodies of them. */
export class KnownKinds {
  readonly #kinds: ReadonlyMap<string, BodyKind>;

  constructor(kinds: readonly BodyKind[]) {
    this.#kinds = new Map(kinds.map((kind) => [kind.name, kind]));
    if (this.#kinds.size < kinds.length) throw new Error('two kinds of bodies have one name: rename one of them');
  }

  /** Returns the kind of this name. */
  find(name: string): BodyKind {
    const kind = this.#kinds.get(name);
    if (!kind) throw new Error(`no kind of body is named ${name}`);
    return kind;
  }

  /**
   * Parses and validates a body of a kind. Errors in the body are the client's; they are returned as values, which cross threads
   * complete.
   */
  read(
    name: string,
    bytes: Uint8Array,
    limits: BodyLimits,
  ): { readonly body: ParsedBody } | { readonly refused: Refusal } {
    const kind = this.find(name);
    try {
      return { body: kind.read(bytes, limits) };
    } catch (error) {
      return { refused: refusalOf(error) };
    }
  }
}
