/**
 * Outputs that follow a grammar against free ones, in turns: milliseconds between the tokens of several streams at once, with a vocabulary
 * of 128k tokens. The model has random weights, so that every token of the grammar comes.
 */
import { copyFileSync, existsSync } from 'node:fs';
import { join } from 'node:path';
import { Random } from '../../shared/base/random.ts';
import { Cluster } from '../support/cluster.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { randomModelFolder } from './random_model.ts';
import { configOf, shapes } from './uniform_model.ts';

export interface GuidedOptions {
  readonly shape: string;
  /** Folder with the tokenizer, and its number of tokens. */
  readonly tokenizer: string;
  readonly vocabSize: number;
  readonly numStreams: number;
  readonly numTokens: number;
  readonly numRounds: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

/** Rules of the guided streams: no token ends their text early. */
const RULES: readonly (readonly [name: string, rule: object])[] = [
  ['regex', { structured_outputs: { regex: '[a-zA-Z ,.]+' } }],
  ['JSON schema', { structured_outputs: { json: { type: 'array', items: { type: 'string' }, minItems: 64 } } }],
];

export async function benchGuided(options: GuidedOptions): Promise<Figure[]> {
  const { shape, tokenizer, vocabSize, numStreams, numRounds, print, onFigure } = options;
  const known = shapes[shape];
  if (!known) throw new Error(`no shape ${shape}`);
  const model = randomModelFolder(`${shape}-vocab${vocabSize}`, configOf({ ...known, vocabSize }, 4_096));
  for (const file of ['tokenizer.json', 'tokenizer_config.json'])
    if (!existsSync(join(model, file))) copyFileSync(join(tokenizer, file), join(model, file));
  const args = ['--prefill', '0', '--decode', '1', '--threads', '1', '--store', '0', '--device', 'wasm'];
  const cluster = await Cluster.up('--model', model, ...args);
  const random = new Random(4);
  const gaps = new Map<string, number[]>();
  const kinds = [['free', {}] as const, ...RULES];
  try {
    for (let round = 0; round <= numRounds; round++) {
      for (const [name, rule] of kinds) {
        const seeds = Array.from({ length: numStreams }, () => random.below(1 << 30));
        const all = await Promise.all(seeds.map((seed) => gapOf(cluster, options, seed, rule)));
        // The first round compiles the grammars.
        if (round > 0) gaps.set(name, [...(gaps.get(name) ?? []), percentile(all, 0.5)]);
      }
      if (round > 0)
        print(
          `round ${round} of ${numRounds}: ${kinds.map(([name]) => `${name} ${gaps.get(name)?.at(-1)?.toFixed(1)} ms`).join(', ')}`,
        );
    }
  } finally {
    await cluster.close();
  }
  const reference = percentile(gaps.get('free') ?? [], 0.5);
  const figures: Figure[] = [
    { name: `guided/${numStreams} free rows/between tokens`, value: reference, unit: 'ms' },
    ...RULES.map(([name]) => {
      const value = percentile(gaps.get(name) ?? [], 0.5);
      return withReference(`guided/${numStreams} rows, ${name}/between tokens`, value, 'ms', 'free rows', reference);
    }),
  ];
  figures.forEach(onFigure);
  return figures;
}

/** Mean milliseconds between the tokens of one stream. */
async function gapOf(cluster: Cluster, { numTokens }: GuidedOptions, seed: number, rule: object): Promise<number> {
  const body = {
    prompt: 'The harbour',
    max_tokens: numTokens,
    ignore_eos: true,
    temperature: 1,
    seed,
    stream: true,
    return_token_ids: true,
    ...rule,
  };
  const response = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw new Error(await response.text());
  const times: number[] = [];
  for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
    const numEvents = Buffer.from(chunk).toString('utf8').split('data: {').length - 1;
    for (let i = 0; i < numEvents; i++) times.push(performance.now());
  }
  const [first = 0, last = 0] = [times[0], times.at(-1)];
  if (times.length < numTokens / 2) throw new Error(`a stream ended after ${times.length} of ${numTokens} tokens`);
  return (last - first) / (times.length - 1);
}
