/** A look-up asks the policy what a request would ask, so that it is decided the same: under every policy. Budget: 5 s. */
import assert from 'node:assert/strict';
import { setImmediate as turn } from 'node:timers/promises';
import { test } from 'vitest';
import { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { Random } from '../../../shared/base/random.ts';
import { chainOf, type Digest } from '../../../shared/kv/block_key.ts';
import { chainRoot, noScope } from '../../../shared/kv/format.ts';
import type { Registration } from '../../../shared/protocol/membership.ts';
import { neutralRequest } from '../../../shared/protocol/request.ts';
import { keyWords } from '../../../shared/protocol/packing.ts';
import type { ClusterView } from '../../../services/router/cluster/cluster_view.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import { Conductor } from '../../../shared/placement/conductor.ts';
import { MeanLengthPredictor } from '../../../services/router/conductor/length_predictor.ts';
import type { ClusterSnapshot, Decision, Question, Targets } from '../../../shared/placement/policy.ts';
import { createPolicy, policyNames, type PolicyName } from '../../../shared/placement/policy_registry.ts';
import type { Generation } from '../../../services/router/relay/generation.ts';
import { Relay } from '../../../services/router/relay/relay.ts';
import { RequestLog } from '../../../services/router/record/request_log.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';
import { playedNetwork } from '../../support/played_network.ts';
import { workOf } from '../../placement/snapshots.ts';
import { kindOf } from '../../support/request_kind.ts';
import { PATIENCE_MS } from '../../support/until.ts';

const BLOCK = 4;
const FORMAT = 'ab'.repeat(16) as Digest;
const PROMPT = Uint32Array.from({ length: 42 }, (_, i) => i + 3);
const SCOPE = noScope;
const ENDPOINT = '/v1/completions';

interface Decided {
  readonly question: Question;
  readonly snapshot: ClusterSnapshot;
  readonly decision: Decision;
}

/** A relay to two decode instances, a prefill and a store, which has seven blocks of the prompt. */
class Scene {
  readonly clock = new SimulatedClock();
  readonly decided: Decided[] = [];
  readonly lengths = new MeanLengthPredictor();
  readonly relay: Relay;
  readonly #log = new RequestLog(this.clock, [], 8);

  constructor(name: PolicyName) {
    const { clock } = this;
    const instances = [
      member('decode', 'd1', 96),
      member('decode', 'd2', 96),
      member('prefill', 'p1', 96),
      member('store', 's1', 0),
    ];
    const view = {
      model: { digest: FORMAT, format: { blockSize: BLOCK } },
      of: (role: string) => instances.filter((one) => one.role === role),
      all: () => instances,
      generating: () => instances.filter(({ role }) => role === 'decode'),
      byHolder: (id: string) => instances.find((one) => one.id === id),
      decodeSeenMs: () => clock.nowMs(),
      otherRouters: [],
      changed: () => clock.sleep(10),
    } as unknown as ClusterView;
    const index = new PrefixIndex(1_000);
    const keys = keyWords(chainOf(chainRoot(FORMAT, SCOPE), BLOCK, Array.from(PROMPT)).map(({ key }) => key));
    index.apply('s1/e', { operation: 'stored', tier: 'dram', keys: keys.subarray(0, 14) });
    index.apply('d2/e', { operation: 'stored', tier: 'device', keys: keys.subarray(0, 6) });
    const policy = createPolicy(name, { localPrefillTokens: 8, strictRoles: false });
    const random = Object.assign(new Random(1), { u32: () => 2 ** 31 });
    const conductor = new Conductor({
      view,
      index,
      clock,
      random,
      tieBreak: 0,
      policy: {
        usesAnyRole: policy.usesAnyRole,
        decide: (question, snapshot) => {
          const decision = policy.decide(question, snapshot);
          this.decided.push({ question, snapshot, decision });
          return decision;
        },
      },
    });
    const broken = async function* (): AsyncGenerator<never> {
      await turn();
      throw new Failure('instance_lost', 'it is gone');
    };
    const network = playedNetwork({ decode: broken });
    this.relay = new Relay({
      view,
      clock,
      random: new Random(1),
      conductor,
      lengths: this.lengths,
      router: 'r',
      network,
      decodes: new DecodeStreams(network),
      onFailover: () => undefined,
    });
  }

  async lookUp(generation: Generation, targets?: Targets): Promise<void> {
    const isConstrained = generation.request.constraint !== null;
    const request = { ...generation.request, constraint: null };
    await this.relay.preview({ generation: { ...generation, request }, endpoint: ENDPOINT, isConstrained, targets });
  }

  async send(generation: Generation, targets?: Targets): Promise<void> {
    const trace = this.#log.open('r', kindOf(ENDPOINT), { clientId: undefined, traceId: undefined });
    trace.emit({ kind: 'read', facts: { targets, promptTokens: PROMPT.length } });
    const leaving = new AbortController();
    const bounds = { untilMs: PATIENCE_MS, signal: leaving.signal };
    const ended = this.relay.generate(generation, trace, bounds, () => undefined).catch(() => undefined);
    while (this.decided.length < 2) await turn();
    leaving.abort(new Failure('cancelled', 'enough'));
    await ended;
  }
}

function member(role: 'decode' | 'prefill' | 'store', name: string, maxModelLen: number): Instance {
  const identity = { name, role, address: `${name}:1`, pid: 1, epoch: 'e' };
  const engine = { maxModelLen } as NonNullable<Registration['engine']>;
  const one = new Instance({ member: identity, protocolVersion: 1, ...(role === 'store' ? {} : { engine }) }, 0);
  const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 1, isDraining: false, tiers: {} };
  one.receiveHeartbeat(
    { load: { ...load, ...(role === 'store' ? {} : { work: workOf() }) }, blocks: 0, seen: {} },
    'r',
    0,
  );
  return one;
}

function generation(change: Partial<Generation> = {}, maxLength = 60): Generation {
  return {
    promptTokens: PROMPT,
    isPromptOnly: false,
    isOpenEnded: false,
    ownStopTokenIds: [],
    stopTexts: new Map(),
    promptLogprobs: undefined,
    origin: { tenant: '', priority: 0 },
    request: neutralRequest(PROMPT.length, maxLength),
    text: { stops: [], isStopIncluded: false, isSkippingSpecial: true },
    ...change,
  };
}

const rule = { ...neutralRequest(PROMPT.length, 60), constraint: {} as never };
const CASES: readonly (readonly [string, Generation, Targets?])[] = [
  ['a limited answer', generation()],
  ['an open end, longer than any instance has room for', generation({ isOpenEnded: true }, 4_096)],
  ['a prompt only', generation({ isPromptOnly: true })],
  ['log-probabilities of the prompt', generation({ promptLogprobs: [] })],
  ['a grammar', generation({ request: rule })],
  ['targets', generation(), { ttftMs: 2, tbtMs: 3, totalMs: undefined }],
];

interface Comparison {
  readonly name: PolicyName;
  readonly what: string;
  readonly own: Generation;
  readonly targets: Targets | undefined;
}
const RUNS = policyNames.flatMap((name) =>
  CASES.map(([what, own, targets]): Comparison => ({ name, what, own, targets })),
);

test.each<Comparison>(RUNS)(
  'under $name a look-up asks what the request asks: $what',
  async ({ name, own, targets }) => {
    const scene = new Scene(name);
    const features = { tenant: '', template: '', promptTokens: PROMPT.length, maxTokens: 500 };
    for (let i = 0; i < 20; i++) {
      scene.lengths.learn({ ...features, kind: ENDPOINT }, 5, false);
      scene.lengths.learn({ ...features, kind: `${ENDPOINT} constrained` }, 11, false);
    }
    await scene.lookUp(own, targets);
    await scene.send(own, targets);
    const [said, done] = scene.decided;
    assert.ok(said && done);
    assert.deepEqual(said.question, done.question);
    assert.deepEqual(said.snapshot, done.snapshot);
    assert.deepEqual(said.decision, done.decision);
  },
);
