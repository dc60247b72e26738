/** The products with integer weights that a run of the tests is for: PENSTOCK_PRODUCTS, as engines read it, else `auto`. */
import { engineOptions } from '../../shared/node/options.ts';

/** Products of the wasm device in this run. */
export const productsOfRun = engineOptions.products.schema.parse(process.env['PENSTOCK_PRODUCTS'] ?? 'auto');
