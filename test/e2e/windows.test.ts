/**
 * A model whose layers all see a window: what lies before it does not move, and tokens are those of one process, also when what would be
 * needed is lost. Real processes, two prefill and two decode. Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import { Cluster, mapConcurrently } from '../support/cluster.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { until } from '../support/until.ts';

const path = goldenFolder('mistral');
const [LENGTH, NUM_NEW] = [640, 40];
const random = new Random(8);
const promptOf = (): number[] => Array.from({ length: LENGTH }, () => 3 + random.below(250));

let cluster: Cluster;
let reference: LoadedModel;
beforeAll(async () => {
  const numbers = ['--prefill', '2', '--decode', '2', '--threads', '1'];
  // Prompts are computed elsewhere than answers, whatever that costs.
  const policy = ['--policy', 'longest_prefix', '--local-prefill-tokens', '0'];
  cluster = await Cluster.up('--model', path, ...policy, '--kv-dtype', 'f16', ...numbers);
  reference = await loadReference(path, 'f16', 1_024);
});
afterAll(async () => {
  await reference.executable.close();
  await cluster.close();
});

async function check(prompt: number[]): Promise<void> {
  const { choices } = await cluster.completion({ prompt, max_tokens: NUM_NEW, temperature: 0, ignore_eos: true });
  const want = await generate(reference.executable, prompt, greedy, NUM_NEW);
  assert.deepEqual(
    choices[0]?.token_ids,
    want.map(({ token }) => token),
  );
}

test('blocks before the window stay where they are, and tokens are those of one process', async () => {
  const prompts = [promptOf(), promptOf(), promptOf()];
  await mapConcurrently(prompts, 3, check);
  // Again, from wherever they are now: nobody has taken what a decode instance has for the whole.
  await mapConcurrently([...prompts, prompts[0]!.slice(0, 500)], 2, check);
  const requests = await cluster.requests();
  const fetched = requests.flatMap(({ attempts }) =>
    attempts.flatMap(({ report }) => (report && report.fetched_tokens > 0 ? [report] : [])),
  );
  assert(fetched.length >= prompts.length, `${fetched.length} of ${requests.length} were fetched for`);
  const whole = reference.layout.spec.slotBytes;
  for (const { fetched_tokens: tokens, fetched_bytes: bytes } of fetched) {
    // 48 tokens lie in three blocks at most, besides the tail.
    assert(bytes > 0 && bytes <= 3 * whole, `${bytes} bytes came for ${tokens} tokens`);
    assert(tokens > 400, `${tokens} tokens count as there`);
  }
});

test('a prefill instance takes of a prefix what its rows see', async () => {
  const prompt = promptOf();
  const tokensInStore = async (): Promise<number> => {
    const headers = { 'content-type': 'application/json' };
    const body = JSON.stringify({ prompt });
    const response = await fetch(`${cluster.url}/api/lookup`, { method: 'POST', headers, body });
    const { ranges } = (await response.json()) as {
      ranges: { start: number; end: number; held_by: { node: string }[] }[];
    };
    return ranges
      .filter(({ held_by: by }) => by.some(({ node }) => node === 'store-1'))
      .reduce((sum, { start, end }) => sum + end - start, 0);
  };
  await check(prompt);
  const numFull = Math.floor((LENGTH - 1) / 32);
  await until('the store has its blocks', async () => (await tokensInStore()) >= 32 * numFull);
  // Nobody else has them now.
  await cluster.killAndAwait(['prefill-1', 'prefill-2', 'decode-1', 'decode-2']);
  await check([...prompt, ...promptOf().slice(0, 300)]);
  const [last] = await cluster.requests(1);
  const { report } = last?.attempts.at(-1)?.prefills.at(-1) ?? {};
  assert(report, JSON.stringify(last));
  const { fetched_tokens: fetched, computed_tokens: computed, fetched_bytes: bytes } = report;
  assert(fetched >= 32 * (numFull - 1), `${fetched} tokens count as there`);
  assert(computed < 400, `${computed} tokens were computed`);
  // 48 tokens lie in three blocks at most.
  assert(bytes > 0 && bytes <= 3 * reference.layout.spec.slotBytes, `${bytes} bytes came for ${fetched} tokens`);
  // Others that begin so: for each instance the second one brings them whole, and then they are there.
  for (let i = 0; i < 6; i++) await check([...prompt, ...promptOf().slice(0, 300)]);
  const [sixth] = await cluster.requests(1);
  const there = sixth?.attempts.at(-1)?.prefills.at(-1)?.report;
  assert(there && there.cached_tokens >= 32 * (numFull - 1), JSON.stringify(sixth));
});

test('whoever has them is lost: what is computed again is right', async () => {
  const prompt = promptOf();
  await check(prompt);
  const answers = mapConcurrently([prompt, promptOf(), prompt.slice(0, 600), promptOf()], 4, check);
  cluster.kill('prefill-1');
  cluster.kill('store-1');
  await answers;
  await check(prompt);
});
