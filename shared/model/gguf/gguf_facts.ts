/** Properties of a GGUF file from which its configuration is made. */
import type { GgufFamily } from './gguf_families.ts';

/** Factors of rotary frequencies, which the file stores as small tensors; an absent field means that the file has no such tensor. */
export interface RopeFactors {
  /** Factors for every context length, as Llama 3 has them. */
  readonly all?: readonly number[];
  readonly short?: readonly number[];
  readonly long?: readonly number[];
}

/** Properties of a GGUF file from which its configuration is made. */
export interface GgufFacts {
  readonly family: GgufFamily;
  readonly metadata: Readonly<Record<string, unknown>>;
  readonly vocabSize: number;
  /** Shapes of the file's tensors by name, outermost dimension first. */
  readonly tensors: ReadonlyMap<string, { readonly shape: readonly number[] }>;
  readonly ropeFactors: RopeFactors;
}
