/**
 * The time to first token of one long prompt, with two prefill instances in a pipeline and with one, each with a thread of its own; the
 * answers of both are the same.
 */
import assert from 'node:assert/strict';
import { Random } from '../../shared/base/random.ts';
import { Cluster, runToEnd, type RequestView } from '../support/cluster.ts';
import { percentile, withReference, type Figure } from './figures.ts';
import { randomModelFolder } from './random_model.ts';
import { configOf, shapes, type UniformSize } from './uniform_model.ts';

/** A model of a few megabytes whose chunks take long compared with a call, and whose blocks have four frames. */
const SMALL: UniformSize = {
  hidden: 256,
  layers: 8,
  heads: 4,
  kvHeads: 4,
  headDim: 64,
  inner: 1_024,
  vocabSize: 2_048,
};
const NUM_TOKENS = 4;
const TOKEN = { PENSTOCK_CLUSTER_TOKEN: 'of-the-bench' };

export interface PipelineOptions {
  /** A shape by name, with random weights; undefined: a small one. */
  readonly shape?: string | undefined;
  readonly promptTokens: number;
  readonly numPrompts: number;
  readonly chunkTokens: number;
}

interface Measured {
  readonly ttftMs: number;
  /** Part of the prompts that as many instances computed as there were. */
  readonly share: number;
  readonly answers: readonly (readonly number[])[];
}

/**
 * Returns the figures, those of two instances over the prompts that both computed: the price decides, by step times that the engines have
 * fitted. @throws AssertionError when answers differ
 */
export async function benchPipeline(options: PipelineOptions): Promise<Figure[]> {
  const { shape, promptTokens } = options;
  const size = shape === undefined ? SMALL : shapes[shape];
  assert(size, `no shape ${shape}`);
  const name = shape ?? 'small';
  const model = randomModelFolder(name, configOf(size, Math.max(4_096, promptTokens + 64)));
  const one = await measure(model, 1, options);
  const two = await measure(model, 2, options);
  assert.deepEqual(two.answers, one.answers, 'an answer depends on how its prompt was computed');
  const at = `path/pipeline/${name}/${promptTokens}`;
  return [
    withReference(`${at}/ttft`, two.ttftMs, 'ms', 'one prefill instance', one.ttftMs),
    { name: `${at}/computed-by-two`, value: two.share, unit: 'of the prompts' },
  ];
}

async function measure(
  model: string,
  numPrefill: number,
  { promptTokens, numPrompts, chunkTokens }: PipelineOptions,
): Promise<Measured> {
  const random = new Random(7);
  const promptOf = (length: number): number[] => Array.from({ length }, () => 3 + random.below(1_500));
  const cluster = await Cluster.up(
    ...['--model', model, '--prefill', String(numPrefill), '--decode', '1', '--store', '0', '--threads', '1'],
    ...[
      '--policy',
      'round_robin',
      '--strict-roles',
      '--local-prefill-tokens',
      '64',
      '--chunk-tokens',
      String(chunkTokens),
    ],
    ...['--cluster-token', TOKEN.PENSTOCK_CLUSTER_TOKEN],
  );
  try {
    // Each engine's step times are fitted to long prompts, and links measured, before prices count.
    for (let i = 0; i < 4; i++) await ask(cluster, promptOf(promptTokens));
    const { code, errors } = await runToEnd(['policy', 'priced', '--router', cluster.hub], TOKEN);
    assert.equal(code, 0, errors);
    const answers: (readonly number[])[] = [];
    const views: RequestView[] = [];
    for (let i = 0; i < numPrompts; i++) {
      answers.push(await ask(cluster, promptOf(promptTokens)));
      views.push(...(await cluster.requests(1)));
    }
    const divided = views.filter(({ attempts }) => attempts[0]?.prefills.length === numPrefill);
    const times = (divided.length > 0 ? divided : views).map(({ ttft_ms: ms }) => ms ?? NaN);
    return { ttftMs: percentile(times, 0.5), share: divided.length / views.length, answers };
  } finally {
    await cluster.close();
  }
}

async function ask(cluster: Cluster, prompt: readonly number[]): Promise<readonly number[]> {
  const { choices } = await cluster.completion({ prompt, max_tokens: NUM_TOKENS, temperature: 0, ignore_eos: true });
  return choices[0]?.token_ids ?? [];
}
