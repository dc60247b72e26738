/**
 * Models from files into an engine, each in a process of its own, against a plain read of the same file: over and over into one buffer, and
 * once into memory that stays, which any engine has to have. Files are in the page cache then; once more after they were let go.
 */
import { fork } from 'node:child_process';
import { closeSync, existsSync, openSync, readSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { withReference, type Figure } from './figures.ts';
import { ggufName, ggufPositions, writeGguf, type GgufFormat } from './gguf.ts';
import { cacheFolder } from './llama_peer.ts';
import { letGo } from './page_cache.ts';
import { randomModelFolder, type RandomFormat } from './random_model.ts';
import { randomWeights } from './random_weights.ts';
import { configOf, shapeOfUniform, shapes, uniformTensors } from './uniform_model.ts';

export interface LoadBenchOptions {
  readonly shape: string;
  readonly numThreads: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Measurements that the loading process sends back. */
export interface Loaded {
  readonly weightsMs: number;
  readonly peakBytes: number;
  /** Bytes that the device holds for weights, KV and everything else. */
  readonly heldBytes: number;
}

const READ_BYTES = 4 << 20;
const TURNS = 3;

export async function benchLoad({ shape, numThreads, print, onFigure }: LoadBenchOptions): Promise<Figure[]> {
  const figures: Figure[] = [];
  const note = (figure: Figure): void => {
    figures.push(figure);
    onFigure(figure);
  };
  for (const [name, path, files] of await modelsOf(shape, print)) {
    const bytes = files.reduce((sum, file) => sum + statSync(file).size, 0);
    const rate = (ms: number): number => bytes / 1e6 / ms;
    const best = { over: 0, kept: 0, loaded: 0, peak: Infinity, held: 0 };
    const first = { read: 0, loaded: 0 };
    for (let turn = 0; turn < TURNS; turn++) {
      best.over = Math.max(best.over, rate(timed(() => readOver(files))));
      best.kept = Math.max(best.kept, rate(timed(() => readKept(files))));
      const { weightsMs, peakBytes, heldBytes } = await loadInChild(path, numThreads);
      best.loaded = Math.max(best.loaded, rate(weightsMs));
      best.peak = Math.min(best.peak, peakBytes);
      best.held = heldBytes;
    }
    for (let turn = 0; turn < TURNS; turn++) {
      files.forEach(letGo);
      first.read = Math.max(first.read, rate(timed(() => readOver(files))));
      files.forEach(letGo);
      first.loaded = Math.max(first.loaded, rate((await loadInChild(path, numThreads)).weightsMs));
    }
    note(withReference(`load/${shape}/${name}, off the disk`, first.loaded, 'GB/s', 'a plain read', first.read));
    note(withReference(`load/${shape}/${name}`, best.loaded, 'GB/s', 'a plain read into one buffer', best.over));
    note(withReference(`load/${shape}/${name}, kept`, best.loaded, 'GB/s', 'a plain read into new memory', best.kept));
    note(withReference(`load/${shape}/${name}, peak`, best.peak / 1e6, 'MB', 'what the device has', best.held / 1e6));
  }
  return figures;
}

const NAMES = {
  int8: 'Q8_0 as int8',
  int4: 'Q4_0 as int4',
  uint4: 'Q4_K as uint4',
  f16: 'F16 as int8',
} as const satisfies Record<GgufFormat, string>;

const folders = [
  ['bf16', 'BF16 as int8'],
  ['awq', 'AWQ as uint4'],
  ['gptq', 'GPTQ as uint4'],
] as const satisfies readonly (readonly [RandomFormat, string])[];

/** @returns names, what is loaded, and its files. */
async function modelsOf(shape: string, print: (line: string) => void): Promise<[string, string, string[]][]> {
  const chosen = shapes[shape];
  if (!chosen) throw new Error(`no shape ${shape}`);
  const config = configOf(chosen, ggufPositions);
  const models: [string, string, string[]][] = [];
  for (const format of ['int8', 'int4', 'uint4', 'f16'] as const satisfies GgufFormat[]) {
    const path = join(cacheFolder(), ggufName(shape, format));
    if (!existsSync(path)) {
      print(`writing ${path}`);
      await writeGguf(
        path,
        config,
        format,
        randomWeights(decoderProgram(shapeOfUniform(config), 64, uniformTensors), 7),
      );
    }
    models.push([NAMES[format], path, [path]]);
  }
  // Folders are written of plain Llamas only.
  for (const [format, name] of config.experts || config.window ? [] : folders) {
    const folder = randomModelFolder(shape, config, format);
    models.push([name, folder, [join(folder, 'model.safetensors')]]);
  }
  return models;
}

function timed(run: () => void): number {
  const start = performance.now();
  run();
  return performance.now() - start;
}

function readOver(files: readonly string[]): void {
  const buffer = Buffer.alloc(READ_BYTES);
  for (const path of files) {
    const file = openSync(path, 'r');
    while (readSync(file, buffer, 0, buffer.length, null) > 0);
    closeSync(file);
  }
}

function readKept(files: readonly string[]): void {
  for (const path of files) {
    const file = openSync(path, 'r');
    const all = new Uint8Array(statSync(path).size);
    for (let at = 0; at < all.length;) at += readSync(file, all, at, Math.min(READ_BYTES, all.length - at), null);
    closeSync(file);
  }
}

function loadInChild(path: string, numThreads: number): Promise<Loaded> {
  return new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(new URL('./load_child.js', import.meta.url)), [path, String(numThreads)]);
    child.once('message', (message) => {
      resolve(message as Loaded);
    });
    child.once('exit', (code) => {
      reject(new Error(`the process that loads ended with ${code}`));
    });
  });
}
