/**
 * Requests as a service sees them, whose right answers are known: prompts with shared prefixes, greedy and seeded, streamed and
 * not; and a client that keeps when each token came.
 */
/* eslint-disable time/speed -- `npm run chaos` measures; chaos.test.ts asks for no time */
import assert from 'node:assert/strict';
import type { Random } from '../../../shared/base/random.ts';
import type { TestSampling } from '../../support/request.ts';
import { harbour, type Cluster } from '../../support/cluster.ts';
import { generate, greedy, loadReference } from '../../support/reference_loop.ts';

export interface KnownCase {
  readonly prompt: readonly number[];
  readonly maxTokens: number;
  readonly params: TestSampling;
  readonly want: readonly number[];
}

/** A model that chaos is run with. */
export interface ChaosModel {
  readonly path: string;
  /** Prompts have token ids from 3 up to this. */
  readonly endToken: number;
  /** Lengths of prompts and answers are divided by it. */
  readonly shortness: number;
  /** Options of `penstock up` besides those of every run. */
  readonly options: readonly string[];
  /** Time between two strikes, in ms: a larger model is loaded for longer. */
  readonly strikeEveryMs: number;
  readonly numClients: number;
}

/** The model of the README's first command. */
export const harbourChaos: ChaosModel = {
  path: harbour,
  endToken: 1_503,
  shortness: 1,
  options: [],
  strikeEveryMs: 2_000,
  numClients: 6,
};

/** Returns cases of `model` with the tokens of a single-process loop. */
export async function knownCases(count: number, random: Random, model = harbourChaos): Promise<KnownCase[]> {
  const { path, endToken, shortness } = model;
  const token = (): number => 3 + random.below(endToken - 3);
  const tokens = (length: number): number[] => Array.from({ length: Math.ceil(length / shortness) }, token);
  const prefixes = Array.from({ length: 4 }, (_, i) => tokens(100 + 150 * i));
  const { executable } = await loadReference(path, 'f16', Math.ceil(2_048 / shortness));
  const cases: KnownCase[] = [];
  for (let i = 0; i < count; i++) {
    const own = tokens(1 + random.below(i % 4 === 0 ? 900 : 200));
    const prompt = i % 2 === 0 ? own : [...(prefixes[i % prefixes.length] ?? []), ...own];
    const maxTokens = Math.ceil((i % 5 === 0 ? 200 + random.below(200) : 4 + random.below(40)) / shortness);
    const params: TestSampling =
      i % 3 === 0 ? greedy : { ...greedy, temperature: 0.9, seed: random.below(2 ** 31), topP: i % 3 === 1 ? 1 : 0.9 };
    const want = (await generate(executable, prompt, params, maxTokens)).map((sampled) => sampled.token);
    cases.push({ prompt, maxTokens, params, want });
  }
  await executable.close();
  return cases;
}

export interface Answer {
  readonly outcome: 'equal' | 'different' | 'failed';
  readonly message: string;
  readonly startMs: number;
  /** When each event of a stream came, and when the answer was over. */
  readonly timesMs: readonly number[];
}

/**
 * Asks for one case, with the key that its first token picks: prompts with one prefix are of one tenant. A stream's gaps are in the times; of
 * other answers only the end is.
 */
export async function ask(cluster: Cluster, one: KnownCase, isStream: boolean): Promise<Answer> {
  const startMs = performance.now();
  const timesMs: number[] = [];
  const { prompt, maxTokens, params, want } = one;
  const tokens: number[] = [];
  let message = '';
  try {
    const response = await fetch(`${cluster.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...cluster.clientHeaders(prompt[0] ?? 0) },
      body: JSON.stringify({
        prompt,
        max_tokens: maxTokens,
        stream: isStream,
        return_token_ids: true,
        ignore_eos: true,
        temperature: params.temperature,
        top_p: params.topP,
        seed: params.seed,
      }),
    });
    if (response.status !== 200) message = `${response.status} ${await response.text()}`;
    else if (isStream) {
      for await (const event of eventsOf(response)) {
        timesMs.push(performance.now());
        if (event.error) message = event.error.message;
        tokens.push(...(event.choices?.[0]?.token_ids ?? []));
      }
    } else {
      const body = (await response.json()) as Event;
      tokens.push(...(body.choices?.[0]?.token_ids ?? []));
    }
  } catch (error) {
    message = String(error);
  }
  timesMs.push(performance.now());
  const isEqual = tokens.length === want.length && tokens.every((id, i) => id === want[i]);
  const outcome = message !== '' ? 'failed' : isEqual ? 'equal' : 'different';
  return { outcome, message: message || `${tokens.length} of ${want.length} tokens`, startMs, timesMs };
}

export interface Event {
  readonly error?: { readonly message: string };
  readonly choices?: readonly { readonly text: string; readonly token_ids?: readonly number[] }[];
}

/** The events of a stream, without its end mark. */
export async function* eventsOf(response: Response): AsyncGenerator<Event> {
  assert(response.body);
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of response.body) {
    const lines = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line.startsWith('data: ') && line !== 'data: [DONE]') yield JSON.parse(line.slice(6)) as Event;
    }
  }
}
