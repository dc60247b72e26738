/**
 * llama.cpp on the same machine in the same run, through node-llama-cpp, which is installed into a cache folder when it is first asked
 * for: it is no dependency. Its prebuilt CPU code picks the widest instructions that the machine has; with some of it left out, the
 * widest of an older machine.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import assert from 'node:assert/strict';
import { homedir } from 'node:os';
import { basename, join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';

const PACKAGE = 'node-llama-cpp';
const VERSION = '3.22.1';

/** Instruction sets that the peer may use on an x64 CPU: all, no matrix units (`avx512`), or neither 512-bit vectors nor VNNI (`avx2`). */
export const peerInstructions = ['all', 'avx512', 'avx2'] as const;
export type PeerInstructions = (typeof peerInstructions)[number];
type PeerLimit = Exclude<PeerInstructions, 'all'>;

/** Names of its builds for one kind of CPU that use more. */
const tooWide: Readonly<Record<PeerLimit, RegExp>> = {
  avx512: /sapphirerapids/,
  avx2: /sapphirerapids|zen4|cooperlake|icelake|cascadelake|cannonlake|skylakex|alderlake/,
};
/** Features that a build reports about itself when it uses more than the limit allows. */
const isTooWide: Readonly<Record<PeerLimit, RegExp>> = { avx512: /AMX/, avx2: /AMX|AVX512|AVX_VNNI/ };

/** How its sampler samples; temperature 0 is greedy. */
export interface PeerSampling {
  readonly temperature: number;
  readonly topK?: number;
  readonly topP?: number;
  readonly minP?: number;
  readonly seed?: number;
  readonly repeatPenalty?: {
    readonly punishTokens: readonly number[];
    readonly penalty: number;
    readonly frequencyPenalty: number;
    readonly presencePenalty: number;
  };
}

/** Methods of the package's sequence that the bench uses. */
interface Sequence {
  clearHistory(): Promise<void>;
  evaluateWithoutGeneratingNewTokens(tokens: readonly number[]): Promise<void>;
  evaluate(tokens: readonly number[], options: PeerSampling & { yieldEogToken: boolean }): AsyncGenerator<number, void>;
}
interface Context {
  getSequence(): Sequence;
  dispose(): Promise<void>;
}
interface Model {
  createContext(options: {
    contextSize: number;
    sequences: number;
    batchSize: number;
    threads: { ideal: number; min: number };
  }): Promise<Context>;
  dispose(): Promise<void>;
}
interface Llama {
  readonly systemInfo: string;
  loadModel(options: { modelPath: string }): Promise<Model>;
}

export function cacheFolder(): string {
  const folder = join(process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache'), 'penstock-bench');
  mkdirSync(folder, { recursive: true });
  return folder;
}

/** Whole or not at all. */
function inOneStep(folder: string, fill: (part: string) => void): void {
  const part = `${folder}.part`;
  rmSync(part, { recursive: true, force: true });
  mkdirSync(part, { recursive: true });
  fill(part);
  renameSync(part, folder);
}

function installInto(folder: string, print: (line: string) => void): void {
  print(`installing ${PACKAGE} ${VERSION} into ${folder}`);
  inOneStep(folder, (part) => {
    writeFileSync(join(part, 'package.json'), '{ "private": true }\n');
    const options = ['--no-audit', '--no-fund', '--ignore-scripts'];
    execFileSync('npm', ['install', `${PACKAGE}@${VERSION}`, ...options], { cwd: part, stdio: 'inherit' });
  });
}

/** The package and its CPU builds copied without some of these, everything else linked. */
function leaveOut(builds: RegExp, whole: string, folder: string): void {
  const scope = `@${PACKAGE}`;
  const from = join(whole, 'node_modules');
  inOneStep(folder, (part) => {
    const to = join(part, 'node_modules');
    mkdirSync(join(to, scope), { recursive: true });
    for (const name of readdirSync(from))
      if (name !== PACKAGE && name !== scope) symlinkSync(relative(to, join(from, name)), join(to, name));
    cpSync(join(from, PACKAGE), join(to, PACKAGE), { recursive: true });
    // Only those without a GPU's libraries are asked for.
    for (const name of readdirSync(join(from, scope)).filter((one) => /^[a-z]+-x64$/.test(one))) {
      const filter = (file: string): boolean => !/ggml-cpu-/.test(basename(file)) || !builds.test(basename(file));
      cpSync(join(from, scope, name), join(to, scope, name), { recursive: true, filter });
    }
  });
}

export class LlamaPeer {
  /** Instruction sets it uses here, as it says itself. */
  readonly instructions: string;
  readonly version = `${PACKAGE} ${VERSION}`;
  readonly #llama: Llama;

  private constructor(llama: Llama) {
    this.#llama = llama;
    this.instructions = [...llama.systemInfo.matchAll(/(\w+) = 1/g)].map(([, name]) => name).join(' ');
  }

  /** Uses at most `numThreads`. @throws Error when npm cannot install it, it has no binary for this machine, or cannot be limited. */
  static async install(
    numThreads: number,
    instructions: PeerInstructions,
    print: (line: string) => void,
  ): Promise<LlamaPeer> {
    const whole = join(cacheFolder(), `${PACKAGE}-${VERSION}`);
    if (instructions !== 'all' && process.arch !== 'x64') {
      throw new Error(`${PACKAGE} can be limited to ${instructions} on x64 only, not on ${process.arch}`);
    }
    if (!existsSync(whole)) installInto(whole, print);
    const folder = instructions === 'all' ? whole : `${whole}-${instructions}`;
    if (instructions !== 'all' && !existsSync(folder)) leaveOut(tooWide[instructions], whole, folder);
    const entry = join(folder, 'node_modules', PACKAGE, 'dist/index.js');
    const { getLlama } = (await import(pathToFileURL(entry).href)) as {
      getLlama: (options: { gpu: false; build: 'never'; logLevel: 'error'; maxThreads: number }) => Promise<Llama>;
    };
    const peer = new LlamaPeer(
      await getLlama({ gpu: false, build: 'never', logLevel: 'error', maxThreads: numThreads }),
    );
    if (instructions !== 'all' && isTooWide[instructions].test(peer.instructions)) {
      throw new Error(`${PACKAGE} cannot be limited to ${instructions} here, it uses ${peer.instructions}`);
    }
    return peer;
  }

  /** Loads and computes a little, so that what is measured next is not disturbed by pages that still come in. */
  async load(modelPath: string, numThreads: number): Promise<PeerModel> {
    const model = new PeerModel(await this.#llama.loadModel({ modelPath }), numThreads);
    await model.withSequences(1, 512, async ([sequence]) => {
      const tokens = Array.from({ length: 256 }, (_, i) => 3 + (i % 200));
      for (let i = 0; i < 4; i++) await peerPrefillMs(sequence!, tokens, () => 0);
    });
    return model;
  }
}

export class PeerModel {
  readonly #model: Model;
  readonly #numThreads: number;

  constructor(model: Model, numThreads: number) {
    this.#model = model;
    this.#numThreads = numThreads;
  }

  /** Measures with `numSequences` sequences of `contextSize` tokens each, then gives the memory back. */
  async withSequences<T>(
    numSequences: number,
    contextSize: number,
    use: (sequences: readonly Sequence[]) => Promise<T>,
  ): Promise<T> {
    const context = await this.#model.createContext({
      contextSize,
      sequences: numSequences,
      batchSize: 512,
      threads: { ideal: this.#numThreads, min: this.#numThreads },
    });
    try {
      return await use(Array.from({ length: numSequences }, () => context.getSequence()));
    } finally {
      await context.dispose();
    }
  }

  close(): Promise<void> {
    return this.#model.dispose();
  }
}

/** A prompt into an emptied sequence, milliseconds. The peer computes no logits for it. */
export async function peerPrefillMs(
  sequence: Sequence,
  tokens: readonly number[],
  nowMs: () => number,
): Promise<number> {
  await sequence.clearHistory();
  const start = nowMs();
  await sequence.evaluateWithoutGeneratingNewTokens(tokens);
  return nowMs() - start;
}

/** Tokens of the first sequences, one each in one batch, again and again. Sampling and scheduling are the package's. */
export class PeerDecoding {
  /** Tokens that each sequence has got so far. */
  readonly numTokens: number[];
  readonly #generators: readonly AsyncGenerator<number, void>[];

  private constructor(generators: readonly AsyncGenerator<number, void>[]) {
    this.#generators = generators;
    this.numTokens = generators.map(() => 0);
  }

  /** Greedy unless it is told how. */
  static async start(
    sequences: readonly Sequence[],
    prompt: readonly number[],
    sampling: PeerSampling = { temperature: 0 },
  ): Promise<PeerDecoding> {
    for (const sequence of sequences) await sequence.evaluateWithoutGeneratingNewTokens(prompt.slice(0, -1));
    const last = prompt.slice(-1);
    return new PeerDecoding(sequences.map((one) => one.evaluate(last, { ...sampling, yieldEogToken: true })));
  }

  async step(batch: number): Promise<void> {
    const results = await Promise.all(this.#generators.slice(0, batch).map((generator) => generator.next()));
    results.forEach(({ done }, i) => {
      assert(!done, 'the peer goes on for as long as it is asked to');
      this.numTokens[i]!++;
    });
  }

  async end(): Promise<void> {
    await Promise.all(this.#generators.map((generator) => generator.return()));
  }
}
