/**
 * Suites that `npm test` runs once more with another implementation of products (kernels/wasm/products.ts) than the fastest: in turn by the
 * number of the commit, all of them in the long run. Reads the build.
 */
import { commitNumber } from './suites.js';

/** Suites of what products compute. In their second run they leave out what does not depend on the implementation. */
export const PRODUCTS_SUITES = [
  'test/kernels/wasm.test.ts',
  'test/engine/golden.test.ts',
  'test/engine/format_hits.test.ts',
];

/** Returns the names of the implementations that this machine has, but for the fastest, which all other suites take, and clauses about those that it lacks. */
export async function productsHere() {
  const [{ compileKernels }, { productsKinds }, { chooseProducts }] = await Promise.all([
    import('../dist/kernels/wasm/compiled_kernels.js'),
    import('../dist/kernels/wasm/products.js'),
    import('../dist/kernels/wasm/products_trial.js'),
  ]);
  const kernels = compileKernels(true);
  const kinds = productsKinds.map(({ name, codeOf }) => ({ name, code: codeOf(kernels) }));
  const fastest = chooseProducts(kernels, { wanted: 'auto' }).name;
  const isMissing = ({ code }) => typeof code === 'string';
  return {
    names: kinds.filter((kind) => !isMissing(kind) && kind.name !== fastest).map(({ name }) => name),
    missing: kinds.filter(isMissing).map(({ name, code }) => `${name} (${code})`),
  };
}

/** Returns those of `names` that a run is for. */
export function productsInTurn(names, isLong, number = commitNumber()) {
  return isLong || names.length === 0 ? names : [names[number % names.length]];
}
