/** Entry of a transfer thread. */
export { start } from './transfer_methods.ts';
