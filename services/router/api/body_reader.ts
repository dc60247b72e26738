/** The kinds of bodies that a thread knows, by name. The thread that parses large bodies serves it as it is. */
import type { BodyKind, ParsedBody } from './body_kind.ts';
import { refusalOf, type BodyLimits, type Refusal } from './parameter_failure.ts';

/** A body to parse. */
export interface BodyJob {
  /** Name of the body's kind. */
  readonly kind: string;
  readonly bytes: Uint8Array;
  readonly limits: BodyLimits;
}

/** Finds kinds by their names, and reads bodies of them. */
export class BodyReader {
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

  /** Parses and validates a body. Errors in it are the client's; they are returned as values, which cross threads complete. */
  read({ kind: name, bytes, limits }: BodyJob): { readonly body: ParsedBody } | { readonly refused: Refusal } {
    const kind = this.find(name);
    try {
      return { body: kind.read(bytes, limits) };
    } catch (error) {
      return { refused: refusalOf(error) };
    }
  }
}
