/** Entry of a grammar thread. */
export { start } from './mask_matchers.ts';
