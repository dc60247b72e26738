/** The store role: keeps blocks in DRAM, and below it in LMDB on SSD. */
import { runRole } from '../../shared/instance/role_process.ts';
import { startStore } from './store.ts';

await runRole('store', startStore);
