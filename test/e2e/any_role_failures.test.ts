/**
 * Failures under the default policy, by which any instance computes prompts and generates: instances of both roles are killed and
 * stopped (SIGSTOP) while each generates for several streams. Tokens are those of a single process.
 * Not covered: failures between prefill and decode, which e2e/failures and e2e/oracle have by a policy that always splits.
 * Budget: 40 s.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { Cluster, harbour, type RequestView } from '../support/cluster.ts';
import { generate, greedy, loadReference } from '../support/reference_loop.ts';
import { settledRequests } from '../support/stopped_in.ts';
import { streamTokens } from '../support/token_stream.ts';
import { until } from '../support/until.ts';

/** Rounds of streams that may all be placed on one role. */
const MAX_ROUNDS = 20;
const NUM_STREAMS = 8;
/** Tokens of an answer: more than an instance generates before it is struck, on any machine. */
const MAX_TOKENS = 400;

const random = new Random(31);
const cases = Array.from({ length: NUM_STREAMS }, (_, i) => ({
  prompt: Array.from({ length: 40 + 90 * i }, () => 3 + random.below(1_500)),
  params: i % 2 === 0 ? greedy : { ...greedy, temperature: 0.8, seed: i },
}));

let cluster: Cluster;
let want: number[][];

beforeAll(async () => {
  const { executable } = await loadReference(harbour, 'f16');
  want = [];
  for (const { prompt, params } of cases)
    want.push((await generate(executable, prompt, params, MAX_TOKENS)).map(({ token }) => token));
  await executable.close();
  cluster = await Cluster.up('--prefill', '2', '--decode', '2', '--store', '1');
});
afterAll(async () => {
  await cluster.close();
});

/** Returns the running requests by the instance that generates for them. */
async function generating(): Promise<Map<string, RequestView[]>> {
  const by = new Map<string, RequestView[]>();
  for (const view of await cluster.requests(NUM_STREAMS)) {
    const decode = view.attempts.at(-1)?.decode;
    if (decode === undefined || view.phase !== 'decoding' || view.output_tokens > MAX_TOKENS / 8) continue;
    by.set(decode, [...(by.get(decode) ?? []), view]);
  }
  return by;
}

/** Begins all streams; returns them, and an instance of each role that generates for some of them. Both are stopped. */
async function begin(): Promise<{ streams: ReturnType<typeof streamTokens>[]; prefill: string; decode: string }> {
  // Measured times decide the placement, so on a busy machine all may go to one role: then they are asked for again.
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const streams = cases.map(({ prompt, params: { temperature, seed } }) =>
      streamTokens(cluster, { prompt, max_tokens: MAX_TOKENS, temperature, seed }),
    );
    let isOver = false;
    const over = Promise.allSettled(streams).then(() => (isOver = true));
    const victims = await until('instances of both roles generate, or all is generated', async () => {
      const names = [...(await generating()).keys()];
      const nameOf = (role: string): string | undefined => names.find((name) => name.startsWith(role));
      const [prefill, decode] = [nameOf('prefill'), nameOf('decode')];
      return prefill !== undefined && decode !== undefined ? { prefill, decode } : isOver && 'over';
    });
    if (victims !== 'over') {
      const both = [victims.prefill, victims.decode];
      for (const name of both) cluster.kill(name, 'SIGSTOP');
      // The router first reads all they had sent; then their streams stand still, or are over.
      if (await areStopped(both)) return { streams, ...victims };
      for (const name of both) cluster.kill(name, 'SIGCONT');
    }
    await over;
  }
  return assert.fail(`in ${MAX_ROUNDS} rounds no instance of one role generated`);
}

/** Whether each of the instances, which are stopped, still has a stream to generate. */
async function areStopped(names: readonly string[]): Promise<boolean> {
  // Others go on meanwhile.
  const decodeOf = ({ attempts }: RequestView): string => attempts.at(-1)?.decode ?? '';
  const views = await settledRequests(cluster, (view) => names.includes(decodeOf(view)));
  return names.every((name) => views.some((view) => view.phase === 'decoding' && decodeOf(view) === name));
}

test.each([
  ['prefill', 'decode'],
  ['decode', 'prefill'],
] as const)(
  'a %s instance killed and a %s instance stopped while both generate: every stream has each token once and in order (R1)',
  async (killedRole, stoppedRole) => {
    const { streams, ...victims } = await begin();
    const [killed, stopped] = [victims[killedRole], victims[stoppedRole]];
    cluster.kill(killed, 'SIGKILL');
    const answers = await Promise.all(streams);
    cluster.kill(stopped, 'SIGCONT');
    for (const [i, { tokens, error, isDone }] of answers.entries()) {
      assert.equal(error, undefined);
      assert(isDone);
      assert.deepEqual(tokens, want[i], `stream ${i}`);
    }
    const struck = (await cluster.requests(NUM_STREAMS)).filter(({ attempts }) => attempts.length > 1);
    const from = new Set(struck.flatMap(({ attempts }) => attempts.slice(0, -1).map(({ decode }) => decode)));
    expect([...from].sort()).toEqual(expect.arrayContaining([killed, stopped].sort()));
    await until('all are back', async () => {
      const pool = await cluster.pool();
      return (
        pool.length === 5 && pool.every(({ state, waiting, running }) => state === 'alive' && waiting + running === 0)
      );
    });
    await cluster.idle();
  },
);
