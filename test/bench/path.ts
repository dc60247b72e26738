/**
 * The whole path on one machine: where the milliseconds of a TTFT go, cold, cached on the decode instance, cached in the store;
 * time between tokens; requests per second; the router's own share; bytes moved per token.
 *
 * References of the same run: the same prompt on a cluster without prefill instances (aggregated), and the size of a token's KV.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { Cluster, harbour, mapConcurrently, type RequestView } from '../support/cluster.ts';
import { Random } from '../../shared/base/random.ts';
import { configOf, shapes } from './uniform_model.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { randomModelFolder } from './random_model.ts';

export interface PathOptions {
  readonly promptTokens: number;
  readonly numRequests: number;
  /** Generated per request. */
  readonly numTokens: number;
  /** A shape with random weights; undefined: the model of the repository. */
  readonly shape?: string | undefined;
}

/** K and V of every layer and KV head, f16. */
function kvBytesPerToken(model: string): number {
  const { layers } = shapeOf(readModelFolder(model));
  return layers.reduce((sum, { kvHeads, headDim }) => sum + 2 * kvHeads * headDim * 2, 0);
}

export async function benchPath(options: PathOptions): Promise<Figure[]> {
  const random = new Random(1);
  const prompt = (): number[] => Array.from({ length: options.promptTokens }, () => 3 + random.below(1_500));
  const model = options.shape === undefined ? harbour : folderOf(options.shape);
  const prefix = options.shape === undefined ? 'path' : `path/${options.shape}`;
  const aggregated = await measureAggregated(options, model, prompt);
  const cluster = await Cluster.up(
    ...['--model', model, '--prefill', '1', '--decode', '1', '--store', '1'],
    // The way between two instances is measured, also where one of them alone would be faster.
    ...['--policy', 'longest_prefix', '--local-prefill-tokens', '64'],
  );
  try {
    await cluster.completion({ prompt: prompt(), max_tokens: 4 });
    const figures: Figure[] = [];
    const prompts = Array.from({ length: 5 }, prompt);
    const bytesBefore = await storedBytes(cluster);
    const cold = await inTurn(cluster, prompts, options.numTokens);
    const offeredBytes = (await storedBytes(cluster)) - bytesBefore;
    const cached = await inTurn(cluster, prompts, options.numTokens);
    await cluster.killAndAwait(['decode-1', 'prefill-1']);
    await cluster.completion({ prompt: prompt().slice(0, 40), max_tokens: 4 });
    const stored = await inTurn(cluster, prompts, options.numTokens);
    for (const [name, views] of [
      ['cold', cold],
      ['cached-on-decode', cached],
      ['cached-in-store', stored],
    ] as const) {
      figures.push(
        withReference(
          `path/ttft/${name}`,
          median(views, (view) => view.ttft_ms ?? NaN),
          'ms',
          'aggregated cold',
          aggregated.ttftMs,
        ),
      );
      for (const part of ['router', 'queue', 'load', 'compute', 'transport']) {
        figures.push({
          name: `path/ttft/${name}/${part}`,
          value: median(views, (view) => view.ttft_parts_ms?.[part] ?? NaN),
          unit: 'ms',
        });
      }
    }
    figures.push(
      withReference(
        'path/moved/offered-to-store',
        offeredBytes / (5 * options.promptTokens),
        'bytes/token',
        'KV of a token',
        kvBytesPerToken(model),
      ),
    );
    figures.push(
      withReference(
        'path/ttft/cached-in-store, of cold',
        median(stored, (view) => view.ttft_ms ?? NaN),
        'ms',
        'cold',
        median(cold, (view) => view.ttft_ms ?? NaN),
      ),
      withReference(
        'path/prefill',
        (options.promptTokens * 1_000) /
          median(cold, (view) => view.attempts[0]?.prefills[0]?.report?.compute_ms ?? NaN),
        'tokens/s',
        'the engine by itself',
        (options.promptTokens * 1_000) / aggregated.computeMs,
      ),
    );
    // Parts of the load time of a cold prompt, from the prefill instance's own report.
    for (const part of ['queue_ms', 'compute_ms'] as const) {
      figures.push({
        name: `path/ttft/cold/load/prefill-${part.replace('_ms', '')}`,
        value: median(cold, (view) => view.attempts[0]?.prefills[0]?.report?.[part] ?? NaN),
        unit: 'ms',
      });
    }
    figures.push(
      withReference('path/moved/cold', median(cold, perToken), 'bytes/token', 'KV of a token', kvBytesPerToken(model)),
    );
    figures.push(
      withReference(
        'path/moved/cached-in-store',
        median(stored, perToken),
        'bytes/token',
        'KV of a token',
        kvBytesPerToken(model),
      ),
    );
    for (const concurrency of [1, 8]) figures.push(...(await throughput(cluster, options, concurrency, prompt)));
    return figures.map((figure) => ({ ...figure, name: figure.name.replace('path', prefix) }));
  } finally {
    await cluster.close();
  }
}

function folderOf(shape: string): string {
  const known = shapes[shape];
  if (!known) throw new Error(`no shape ${shape}`);
  return randomModelFolder(shape, configOf(known, 4_096));
}

async function measureAggregated(
  options: PathOptions,
  model: string,
  prompt: () => number[],
): Promise<{ readonly ttftMs: number; readonly computeMs: number }> {
  const cluster = await Cluster.up(
    ...['--model', model, '--prefill', '0', '--decode', '1', '--store', '0', '--threads', '1'],
  );
  try {
    await cluster.completion({ prompt: prompt(), max_tokens: 4 });
    const views = await inTurn(cluster, Array.from({ length: 5 }, prompt), options.numTokens);
    return {
      ttftMs: median(views, (view) => view.ttft_ms ?? NaN),
      computeMs: median(views, (view) => view.ttft_parts_ms?.['compute'] ?? NaN),
    };
  } finally {
    await cluster.close();
  }
}

/** On the store's disk, when it does not grow any more: offers come after the answer, heartbeats every 500 ms. */
async function storedBytes(cluster: Cluster): Promise<number> {
  for (let last = -1; ;) {
    const bytes = (await cluster.node('store-1')).tiers['disk']?.bytes ?? 0;
    if (bytes === last) return bytes;
    last = bytes;
    await sleep(1_100);
  }
}

async function inTurn(cluster: Cluster, prompts: readonly number[][], numTokens: number): Promise<RequestView[]> {
  const views: RequestView[] = [];
  for (const prompt of prompts) {
    await cluster.completion({ prompt, max_tokens: numTokens });
    views.push(...(await cluster.requests(1)));
  }
  return views;
}

function perToken({ fetched_bytes: bytes, tokens }: RequestView): number {
  return bytes / tokens.fetched;
}

function median(views: readonly RequestView[], value: (view: RequestView) => number): number {
  return percentile(views.map(value), 0.5);
}

/** Prompts of a quarter of the length, half of each a shared prefix, streamed, so that gaps between tokens are seen. */
async function throughput(
  cluster: Cluster,
  options: PathOptions,
  concurrency: number,
  prompt: () => number[],
): Promise<Figure[]> {
  const shared = prompt().slice(0, Math.floor(options.promptTokens / 8));
  const prompts = Array.from({ length: options.numRequests }, () => [...shared, ...prompt().slice(0, shared.length)]);
  const gaps: number[] = [];
  const startMs = performance.now();
  await mapConcurrently(prompts, concurrency, async (one) => {
    gaps.push(...(await streamGaps(cluster, one, options.numTokens)));
  });
  const seconds = (performance.now() - startMs) / 1_000;
  const views = (await cluster.requests()).slice(0, options.numRequests);
  const at = `path/concurrency${concurrency}`;
  return [
    { name: `${at}/requests`, value: options.numRequests / seconds, unit: '1/s' },
    { name: `${at}/ttft/p50`, value: median(views, (view) => view.ttft_ms ?? NaN), unit: 'ms' },
    { name: `${at}/tbt/p50`, value: percentile(gaps, 0.5), unit: 'ms' },
    { name: `${at}/tbt/p99`, value: percentile(gaps, 0.99), unit: 'ms' },
    { name: `${at}/router`, value: median(views, (view) => view.ttft_parts_ms?.['router'] ?? NaN), unit: 'ms/request' },
  ];
}

/** Milliseconds between consecutive tokens as the client sees them. */
export async function streamGaps(cluster: Cluster, prompt: readonly number[], numTokens: number): Promise<number[]> {
  const response = await fetch(`${cluster.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      prompt,
      max_tokens: numTokens,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      return_token_ids: true,
    }),
  });
  const gaps: number[] = [];
  let lastMs: number | undefined;
  for await (const chunk of response.body as AsyncIterable<Uint8Array>) {
    const numEvents = Buffer.from(chunk).toString('utf8').split('data: {').length - 1;
    const nowMs = performance.now();
    // Several tokens in one chunk came at once: the first after a gap, the others after none.
    for (let event = 0; event < numEvents; event++) {
      if (lastMs !== undefined) gaps.push(event === 0 ? nowMs - lastMs : 0);
      lastMs = nowMs;
    }
  }
  return gaps;
}
