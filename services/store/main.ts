/** The store role: keeps blocks in DRAM, and below it in LMDB on SSD. */
export { startStore as start } from './store.ts';
