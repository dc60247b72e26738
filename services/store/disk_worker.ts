/** Entry of the store's disk thread. */
export { start } from './disk_thread.ts';
