/** The body of a thread that packs weights. */
import { parentPort, workerData } from 'node:worker_threads';
import { servePacking, type PackHelperData } from './packing.ts';

parentPort?.postMessage('ready');
servePacking(workerData as PackHelperData);
