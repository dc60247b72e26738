/** Short requests at full speed, and large batches: every call that ends must end as its transport means it to. */
/* eslint-disable time/speed -- `npm run chaos` measures; chaos.test.ts asks for no time */
import type { Random } from '../../../shared/base/random.ts';
import type { Cluster } from '../../support/cluster.ts';

export interface RateResult {
  readonly numAnswered: number;
  readonly failures: readonly string[];
  readonly seconds: number;
}

const NUM_CLIENTS = 16;

async function post(cluster: Cluster, client: number, body: object): Promise<string | undefined> {
  try {
    const response = await fetch(`${cluster.url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...cluster.clientHeaders(client) },
      body: JSON.stringify(body),
    });
    const text = await response.text();
    return response.status === 200 ? undefined : `${response.status} ${text.slice(0, 300)}`;
  } catch (error) {
    return String(error);
  }
}

/** 16 clients with 1-token completions until `durationMs` are over, or so many are answered. */
export async function runRate(
  cluster: Cluster,
  durationMs: number,
  random: Random,
  maxAnswered = Infinity,
): Promise<RateResult> {
  const startMs = performance.now();
  const failures: string[] = [];
  let numAnswered = 0;
  const client = async (_: unknown, number: number): Promise<void> => {
    while (performance.now() - startMs < durationMs && numAnswered < maxAnswered && failures.length < 100) {
      const prompt = Array.from({ length: 3 + random.below(4) }, () => 3 + random.below(1_500));
      const failure = await post(cluster, number, { prompt, max_tokens: 1 });
      if (failure === undefined) numAnswered++;
      else failures.push(failure);
    }
  };
  await Promise.all(Array.from({ length: NUM_CLIENTS }, client));
  return { numAnswered, failures, seconds: (performance.now() - startMs) / 1_000 };
}

/** Batches of 255 prompts, one after the other; every one of their calls ends at about the same time. */
export async function runBatches(cluster: Cluster, count: number, random: Random): Promise<RateResult> {
  const startMs = performance.now();
  const failures: string[] = [];
  let numAnswered = 0;
  for (let i = 0; i < count; i++) {
    const prompt = Array.from({ length: 255 }, () => [3 + random.below(1_500), 3 + random.below(1_500)]);
    const failure = await post(cluster, i, { prompt, max_tokens: 1 });
    if (failure === undefined) numAnswered++;
    else failures.push(failure);
  }
  return { numAnswered, failures, seconds: (performance.now() - startMs) / 1_000 };
}
