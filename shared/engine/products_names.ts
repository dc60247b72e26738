/** Names of implementations of products, for options: what stands outside of the engine does not import the kernels. */
export { productsNames } from '../../kernels/wasm/products_names.ts';
