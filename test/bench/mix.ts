/**
 * Time between the tokens of chats while long prompts arrive, on one machine with two engine threads in all: split (a prefill and a decode
 * instance), placed by price on the same two, and aggregated (one instance that does both), each against the same chats alone; and what is
 * left of the prompts' own rate.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../../shared/base/random.ts';
import { Cluster } from '../support/cluster.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { streamGaps } from './path.ts';
import { randomModelFolder } from './random_model.ts';
import { configOf, shapes } from './uniform_model.ts';

export interface MixOptions {
  readonly shape: string;
  readonly promptTokens: number;
  /** Rounds of chats, alone and with prompts. */
  readonly numRounds: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

const CHATS = 3;
const CHAT_PROMPT = 64;
const CHAT_TOKENS = 100;
const VOCAB = 40_000;

const ways = {
  split: ['--prefill', '1', '--decode', '1', '--threads', '1', '--policy', 'longest_prefix'],
  priced: ['--prefill', '1', '--decode', '1', '--threads', '1'],
  aggregated: ['--prefill', '0', '--decode', '1', '--threads', '2'],
} as const;

export async function benchMix(options: MixOptions): Promise<Figure[]> {
  const known = shapes[options.shape];
  if (!known) throw new Error(`no shape ${options.shape}`);
  const model = randomModelFolder(options.shape, configOf(known, 4_096));
  const figures: Figure[] = [];
  for (const [way, args] of Object.entries(ways)) {
    const cluster = await Cluster.up('--model', model, '--store', '0', '--device', 'wasm', ...args);
    try {
      figures.push(...(await measure(cluster, way, options)));
    } finally {
      await cluster.close();
    }
  }
  return figures;
}

async function measure(cluster: Cluster, way: string, options: MixOptions): Promise<Figure[]> {
  const { promptTokens, numRounds, print, onFigure } = options;
  const random = new Random(3);
  const prompt = (count: number): number[] => Array.from({ length: count }, () => 3 + random.below(VOCAB));
  const chats = async (): Promise<number[]> => {
    const gaps = await Promise.all(
      Array.from({ length: CHATS }, () => streamGaps(cluster, prompt(CHAT_PROMPT), CHAT_TOKENS)),
    );
    // The first tokens of each fall into the others' prompts.
    return gaps.flatMap((one) => one.slice(5));
  };
  const longOne = async (): Promise<void> => {
    await cluster.completion({ prompt: prompt(promptTokens), max_tokens: 1, temperature: 0 });
  };
  await chats();
  await longOne();
  const alone: number[] = [];
  for (let round = 0; round < numRounds; round++) alone.push(...(await chats()));
  const startMs = performance.now();
  for (let round = 0; round < 2; round++) await longOne();
  const aloneRate = (2 * promptTokens * 1_000) / (performance.now() - startMs);
  print(`${way}: alone p99 ${percentile(alone, 0.99).toFixed(0)} ms, prompts ${aloneRate.toFixed(0)} tokens/s`);

  let isOver = false;
  let numPrompts = 0;
  const loadedMs = performance.now();
  let lastMs = loadedMs;
  const arriving = (async (): Promise<void> => {
    while (!isOver) {
      await longOne();
      numPrompts++;
      lastMs = performance.now();
    }
  })();
  await sleep(200);
  const loaded: number[] = [];
  for (let round = 0; round < numRounds || (numPrompts < 2 && round < 5 * numRounds); round++)
    loaded.push(...(await chats()));
  // Prompts in progress now finish without chats, so their time does not count.
  const [whole, sinceMs] = [numPrompts, lastMs];
  isOver = true;
  await arriving;
  const loadedRate = whole === 0 ? 0 : (whole * promptTokens * 1_000) / (sinceMs - loadedMs);
  const figures: Figure[] = [
    { name: `mix/${way}/alone/tbt/p50`, value: percentile(alone, 0.5), unit: 'ms' },
    { name: `mix/${way}/alone/tbt/p99`, value: percentile(alone, 0.99), unit: 'ms' },
    withReference(`mix/${way}/loaded/tbt/p50`, percentile(loaded, 0.5), 'ms', 'alone', percentile(alone, 0.5)),
    withReference(`mix/${way}/loaded/tbt/p99`, percentile(loaded, 0.99), 'ms', 'alone', percentile(alone, 0.99)),
    withReference(`mix/${way}/loaded/tbt/worst`, Math.max(...loaded), 'ms', 'alone', Math.max(...alone)),
    withReference(`mix/${way}/loaded/prefill`, loadedRate, 'tokens/s', 'alone', aloneRate),
  ];
  figures.forEach(onFigure);
  return figures;
}
