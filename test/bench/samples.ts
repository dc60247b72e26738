/**
 * Several samples of a prompt (`n`) against a single request, in turns: milliseconds until the last of them has its first token, and the
 * prompt tokens that instances computed; and against as many requests.
 */
import { Random } from '../../shared/base/random.ts';
import { Cluster } from '../support/cluster.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { randomModelFolder } from './random_model.ts';
import { configOf, shapes } from './uniform_model.ts';

export interface SamplesOptions {
  readonly shape: string;
  readonly promptTokens: number;
  readonly numSamples: number;
  readonly numRounds: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

export async function benchSamples(options: SamplesOptions): Promise<Figure[]> {
  const { shape, promptTokens, numSamples, numRounds, print, onFigure } = options;
  const known = shapes[shape];
  if (!known) throw new Error(`no shape ${shape}`);
  const model = randomModelFolder(shape, configOf(known, 4_096));
  const args = ['--prefill', '1', '--decode', '1', '--threads', '1', '--store', '0', '--device', 'wasm'];
  const cluster = await Cluster.up('--model', model, ...args);
  const random = new Random(8);
  const prompt = (): number[] => Array.from({ length: promptTokens }, () => 3 + random.below(known.vocabSize - 3));
  const [single, together, apart, computed]: number[][] = [[], [], [], []];
  try {
    await lastFirstToken(cluster, prompt(), 1);
    for (let round = 0; round < numRounds; round++) {
      single!.push(await lastFirstToken(cluster, prompt(), 1));
      together!.push(await lastFirstToken(cluster, prompt(), numSamples));
      const traces = await cluster.requests(numSamples);
      computed!.push(traces.reduce((sum, { tokens }) => sum + tokens.computed, 0));
      const same = prompt();
      const all = Array.from({ length: numSamples }, () => lastFirstToken(cluster, same, 1));
      apart!.push(Math.max(...(await Promise.all(all))));
      print(
        `round ${round + 1} of ${numRounds}: ${[single, together, apart].map((ms) => ms!.at(-1)!.toFixed(0)).join(', ')} ms`,
      );
    }
  } finally {
    await cluster.close();
  }
  const at = `samples/n${numSamples}`;
  const reference = percentile(single!, 0.5);
  const figures: Figure[] = [
    { name: 'samples/n1/first-token', value: reference, unit: 'ms' },
    withReference(`${at}/last-first-token`, percentile(together!, 0.5), 'ms', 'one request', reference),
    withReference(`${at}/as-requests`, percentile(apart!, 0.5), 'ms', 'one request', reference),
    withReference(`${at}/computed`, percentile(computed!, 0.5), 'tokens', 'the prompt', promptTokens),
  ];
  figures.forEach(onFigure);
  return figures;
}

/** Milliseconds until each of `n` samples of a prompt has its first token. */
async function lastFirstToken(cluster: Cluster, prompt: readonly number[], n: number): Promise<number> {
  const startMs = performance.now();
  const response = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      prompt,
      n,
      max_tokens: 4,
      temperature: 1,
      ignore_eos: true,
      stream: true,
      return_token_ids: true,
    }),
  });
  const seen = new Set<string>();
  let allMs = 0;
  let rest = '';
  for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
    rest += Buffer.from(chunk).toString('utf8');
    for (const [, index] of rest.matchAll(/"index":(\d+)/g)) seen.add(index!);
    rest = rest.slice(rest.lastIndexOf('\n'));
    if (seen.size === n && allMs === 0) allMs = performance.now() - startMs;
  }
  if (allMs === 0) throw new Error(`${seen.size} of ${n} samples had a token`);
  return allMs;
}
