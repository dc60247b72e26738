/** Names of implementations of products (products.ts), as options know them; this module has no other content, so that commands load quickly. */
import { nativeSets, type NativeSet } from '../native/native_sets.ts';

/** Names of the implementations. */
export type ProductsName = 'plain' | 'relaxed' | 'dot' | `native:${NativeSet}`;

/** The products that can be asked for: a name, or the fastest that passes the trial, of all for `auto`, of the native ones for `native`. */
export const productsNames = [
  ...(['auto', 'plain', 'relaxed', 'dot', 'native'] as const),
  ...nativeSets.map((set) => `native:${set}` as const),
] as const;
/** One of {@link productsNames}. */
export type ProductsWanted = (typeof productsNames)[number];
