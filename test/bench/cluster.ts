/**
 * Chats that share system prompts on a cluster of real processes, placed by the default policy and by the longest prefix in turn: what the
 * policy predicted of the time to the first token next to what it was, times to and between tokens, and the throughput at twice the rate.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../../shared/base/random.ts';
import { Cluster, runToEnd } from '../support/cluster.ts';
import { sharedChats, type SharedChat } from '../support/shared_chats.ts';
import { percentile, withReference, type Figure } from './figures.ts';

/** Size of the benchmark. */
export interface ClusterBenchOptions {
  readonly numRounds: number;
  readonly numChats: number;
  /** Requests per second; at twice of them the throughput is measured. */
  readonly rate: number;
  readonly print: (line: string) => void;
  readonly onFigure: (figure: Figure) => void;
}

const POLICIES = ['longest_prefix', 'priced'] as const;
type PolicyOfBench = (typeof POLICIES)[number];
const MAX_TOKENS = 24;
const TOKEN = 'cluster-bench';
/** A prediction is near when it is within this share of the real time. */
const NEAR = 0.25;

interface Predicted {
  readonly ttft_ms?: { readonly predicted: number; readonly real: number } | null;
}

/** Measurements of one policy, over all rounds. */
class Measured {
  readonly ttftMs: number[] = [];
  readonly gapsMs: number[] = [];
  /** Predicted by real time to the first token. */
  readonly ratios: number[] = [];
  numComputed = 0;
  numPrompt = 0;
  readonly tokensPerSecond: number[] = [];
}

/** Measures both policies in turn, so that both meet the same machine. */
export async function benchCluster(options: ClusterBenchOptions): Promise<Figure[]> {
  const { numRounds, numChats, rate, print, onFigure } = options;
  const size = ['--prefill', '2', '--decode', '2', '--store', '2'];
  const cluster = await Cluster.up(...size, '--cluster-token', TOKEN);
  const measured: Record<PolicyOfBench, Measured> = { longest_prefix: new Measured(), priced: new Measured() };
  try {
    for (let round = 0; round <= numRounds; round++) {
      for (const policy of POLICIES) {
        await choose(cluster, policy);
        const of = round === 0 ? new Measured() : measured[policy];
        const random = new Random(100 + round);
        // Other system prompts in each round and for each policy, so that none finds the blocks of another.
        const chats = sharedChats(2 * numChats, 6, 24, random).map((chat) => ({
          ...chat,
          system: `${policy} ${round}. ${chat.system}`,
        }));
        await send(cluster, chats.slice(0, numChats), rate, of);
        const startMs = performance.now();
        await send(cluster, chats.slice(numChats), 2 * rate, new Measured());
        of.tokensPerSecond.push((numChats * MAX_TOKENS * 1_000) / (performance.now() - startMs));
        print(
          `${policy}: round ${round}${round === 0 ? ' (not counted)' : ''}, ttft p50 ${percentile(of.ttftMs, 0.5).toFixed(0)} ms`,
        );
      }
    }
  } finally {
    await cluster.close();
  }
  const figures = figuresOf(measured);
  figures.forEach(onFigure);
  return figures;
}

async function choose({ hub }: Cluster, policy: PolicyOfBench): Promise<void> {
  const { code, errors } = await runToEnd(['policy', policy, '--router', hub], { PENSTOCK_CLUSTER_TOKEN: TOKEN });
  if (code !== 0) throw new Error(errors);
}

/** Sends chats at a steady rate, and notes their times and what was predicted of them. */
async function send(cluster: Cluster, chats: readonly SharedChat[], rate: number, measured: Measured): Promise<void> {
  const random = new Random(1);
  let atMs = 0;
  await Promise.all(
    chats.map(async (chat) => {
      // Exponential gaps between arrivals.
      atMs += (-Math.log(1 - random.below(1_000) / 1_000) * 1_000) / rate;
      await sleep(atMs);
      await stream(cluster, chat, measured);
    }),
  );
  const response = await fetch(`${cluster.url}/api/requests?limit=${chats.length}`);
  const { requests } = (await response.json()) as {
    requests: { predictions?: Predicted | null; prompt_tokens: number; tokens: { computed: number } }[];
  };
  for (const { predictions, prompt_tokens: numPrompt, tokens } of requests) {
    measured.numPrompt += numPrompt;
    measured.numComputed += tokens.computed;
    const ttft = predictions?.ttft_ms;
    if (ttft) measured.ratios.push(ttft.predicted / ttft.real);
  }
}

async function stream({ url }: Cluster, { system, user }: SharedChat, measured: Measured): Promise<void> {
  const messages = [
    { role: 'system', content: system },
    { role: 'user', content: user },
  ];
  const body = { messages, temperature: 0, max_tokens: MAX_TOKENS, ignore_eos: true, stream: true };
  const startMs = performance.now();
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...body, return_token_ids: true }),
  });
  if (!response.body || response.status !== 200) throw new Error(`status ${response.status}`);
  let lastMs: number | undefined;
  for await (const bytes of response.body.pipeThrough(new TextDecoderStream())) {
    if (!/"token_ids":\[\d/.test(bytes)) continue;
    const nowMs = performance.now();
    if (lastMs === undefined) measured.ttftMs.push(nowMs - startMs);
    else measured.gapsMs.push(nowMs - lastMs);
    lastMs = nowMs;
  }
}

function figuresOf({ priced, longest_prefix: other }: Record<PolicyOfBench, Measured>): Figure[] {
  const compared = (name: string, unit: string, of: (measured: Measured) => number): Figure =>
    withReference(`cluster/priced/${name}`, of(priced), unit, 'longest_prefix', of(other));
  const numNear = priced.ratios.filter((ratio) => ratio >= 1 - NEAR && ratio <= 1 + NEAR).length;
  return [
    compared('ttft/p50', 'ms', ({ ttftMs }) => percentile(ttftMs, 0.5)),
    compared('ttft/p99', 'ms', ({ ttftMs }) => percentile(ttftMs, 0.99)),
    compared('tbt/p99', 'ms', ({ gapsMs }) => percentile(gapsMs, 0.99)),
    compared('computed', '% of prompt tokens', ({ numComputed, numPrompt }) => (100 * numComputed) / numPrompt),
    compared('twice the rate', 'tokens/s', ({ tokensPerSecond }) => percentile(tokensPerSecond, 0.5)),
    {
      name: 'cluster/priced/predicted ttft/near',
      value: (100 * numNear) / priced.ratios.length,
      unit: '% of requests',
    },
    { name: 'cluster/priced/predicted ttft/p10', value: percentile(priced.ratios, 0.1), unit: 'of the real one' },
    { name: 'cluster/priced/predicted ttft/p50', value: percentile(priced.ratios, 0.5), unit: 'of the real one' },
    { name: 'cluster/priced/predicted ttft/p90', value: percentile(priced.ratios, 0.9), unit: 'of the real one' },
  ];
}
