/** Loads a model and says what it took: peak memory is that of a whole process. */
import { existsSync, readFileSync } from 'node:fs';
import { loadModel } from '../../shared/engine/load_model.ts';
import type { Loaded } from './load.ts';

const [, , modelPath = '', threads = '1'] = process.argv;
const before = process.memoryUsage().rss;
let [first, last] = [0, 0];
const model = await loadModel(
  {
    modelPath,
    device: 'wasm',
    kernelSet: 'deterministic',
    weightFormat: 'auto',
    kvDtype: 'f16',
    deviceMemoryBytes: 0,
    deviceSharing: 1,
    blockSize: 32,
    numBlocks: 32,
    numThreads: Number(threads),
    chunkTokens: 64,
    maxNumSeqs: 1,
    maxModelLen: 512,
  },
  () => {
    last = performance.now();
    first ||= last;
  },
  { nowMs: () => performance.now() },
);
const loaded: Loaded = {
  weightsMs: last - first,
  peakBytes: peakRss() - before,
  heldBytes: model.executable.memoryBytes ?? 0,
};

/** `maxRSS` begins with that of the parent when it forked. */
function peakRss(): number {
  const path = '/proc/self/status';
  const [, kib] = (existsSync(path) && /VmHWM:\s+(\d+) kB/.exec(readFileSync(path, 'utf8'))) || [];
  return (kib === undefined ? process.resourceUsage().maxRSS : Number(kib)) * 1_024;
}

process.send?.(loaded, () => process.exit(0));
