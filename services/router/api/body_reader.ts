/** The thread that parses large bodies. */
import type { BodyKind } from './body_kind.ts';
import { KnownKinds } from './known_kinds.ts';
import type { BodyLimits } from './parameter_failure.ts';

/** Service of the body thread: parses and validates bodies of some kinds. */
export class BodyReader {
  readonly #kinds: KnownKinds;

  constructor(kinds: readonly BodyKind[]) {
    this.#kinds = new KnownKinds(kinds);
  }

  read({
    kind,
    bytes,
    limits,
  }: {
    kind: string;
    bytes: Uint8Array;
    limits: BodyLimits;
  }): ReturnType<KnownKinds['read']> {
    return this.#kinds.read(kind, bytes, limits);
  }
}
