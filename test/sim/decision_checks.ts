/**
 * Checks of the conductor's decisions, which change no answer: the work in a snapshot against a plain account of placements and
 * heartbeats, and prices against the same decision taken again with a longer queue.
 */
import { isDeepStrictEqual } from 'node:util';
import type { InstanceWork } from '../../shared/protocol/instance_work.ts';
import { Instance } from '../../shared/placement/instance.ts';
import type { PlacedWork } from '../../shared/placement/open_placements.ts';
import { decideAgain } from '../../shared/placement/decision_log.ts';
import type { ClusterSnapshot, Decision, InstanceSnapshot, Policy, Question } from '../../shared/placement/policy.ts';
import { createPolicy, type PolicySettings } from '../../shared/placement/policy_registry.ts';
import { PRICED } from '../../shared/placement/priced/priced_policy.ts';
import type { HttpApp } from '../../services/router/router.ts';
import { refusingRule, watchTargets } from './target_checks.ts';

/** Tokens of prompts by which a queue is made longer. */
const MORE_TOKENS = 100_000;

/** Open placements of one instance, and the last one that a heartbeat has counted. */
interface Account {
  readonly open: Map<number, PlacedWork>;
  seen: number;
}

const accounts = new WeakMap<Instance, Account>();

function accountOf(instance: Instance): Account {
  let account = accounts.get(instance);
  if (!account) accounts.set(instance, (account = { open: new Map(), seen: 0 }));
  return account;
}

let isKept = false;

/** Begins to keep accounts of all instances of this process's routers. */
function keepAccounts(): void {
  if (isKept) return;
  isKept = true;
  const { prototype } = Instance;
  const place = Reflect.get<Instance, 'place'>(prototype, 'place');
  const end = Reflect.get<Instance, 'end'>(prototype, 'end');
  const hear = Reflect.get<Instance, 'receiveHeartbeat'>(prototype, 'receiveHeartbeat');
  prototype.place = function (work) {
    const placement = place.call(this, work);
    accountOf(this).open.set(placement, work);
    return placement;
  };
  prototype.end = function (placement) {
    accountOf(this).open.delete(placement);
    end.call(this, placement);
  };
  prototype.receiveHeartbeat = function (status, router, nowMs) {
    const account = accountOf(this);
    account.seen = Math.max(account.seen, status.seen[router] ?? 0);
    hear.call(this, status, router, nowMs);
  };
}

/** Checks every decision that the router's policy takes from now on. */
export function watchDecisions(
  { policy, view }: HttpApp,
  settings: PolicySettings,
  onFault: (fault: string) => void,
): void {
  keepAccounts();
  watchTargets(onFault);
  const priced = createPolicy(PRICED, settings);
  const decide = policy.decide.bind(policy);
  policy.decide = (question, snapshot) => {
    for (const one of [...snapshot.decode, ...snapshot.prefill]) {
      const instance = view.byHolder(one.id);
      const fault = instance && faultOfWork(instance, one);
      if (fault !== undefined) onFault(fault);
    }
    const decision = decide(question, snapshot);
    const fault = decision.kind === 'place' && faultOfPrice(question, snapshot, decision, priced);
    if (fault) onFault(fault);
    return decision;
  };
}

/** Returns how the work in a snapshot differs from that of the last heartbeat and the placements that it does not count. */
function faultOfWork(instance: Instance, { name, work }: InstanceSnapshot): string | undefined {
  const reported = instance.load?.work;
  if (!reported || !work) return reported === work ? undefined : `the snapshot of ${name} lacks its work`;
  const { open, seen } = accountOf(instance);
  const unreported = [...open].flatMap(([placement, placed]) => (placement > seen ? [placed] : []));
  const sum = (of: (placed: PlacedWork) => number): number => unreported.reduce((all, one) => all + of(one), 0);
  const numbers = ({ prompts, coming, freeBlocks, waitingBlocks }: InstanceWork): number[] => [
    ...[prompts.tokens, prompts.pairs, prompts.sequences, coming.sequences, coming.contextTokens],
    waitingBlocks - freeBlocks,
  ];
  const added = [
    sum(({ prompts }) => prompts.tokens),
    sum(({ prompts }) => prompts.pairs),
    sum(({ prompts }) => prompts.sequences),
    sum(({ coming }) => coming.sequences),
    sum(({ coming }) => coming.contextTokens),
    sum(({ coming }) => coming.blocks),
  ];
  const want = numbers(reported).map((value, i) => value + (added[i] ?? 0));
  const got = numbers(work);
  // Sums in another order may be rounded otherwise.
  const isSame = got.every((value, i) => Math.abs(value - (want[i] ?? NaN)) < 1e-3);
  return isSame ? undefined : `the snapshot has work of ${got.join()} at ${name}, not ${want.join()}`;
}

/** Returns what is wrong with a placement of the lowest price: taken again it is the same, and a longer queue makes it dearer. */
function faultOfPrice(
  question: Question,
  snapshot: ClusterSnapshot,
  decision: Extract<Decision, { kind: 'place' }>,
  priced: Policy,
): string | undefined {
  if (decision.policy !== PRICED) return undefined;
  if (!isDeepStrictEqual(decideAgain({ question, snapshot }, priced), decision))
    return 'a decision taken again from its snapshot is another';
  const { priceMs = NaN, alternatives, placement } = decision;
  // A cheaper one is left where it would be refused for its targets.
  const cheaper = alternatives.find(
    ({ priceMs: other = Infinity, prediction, decode }) =>
      other < priceMs && !(prediction && refusingRule(question, snapshot, decode, prediction)),
  );
  if (cheaper) return `${cheaper.decode} was cheaper: ${cheaper.priceMs} ms and not ${priceMs} ms`;
  const busy = placement.prefill ?? placement.decode;
  const rowMs = [...snapshot.decode, ...snapshot.prefill].find(({ id }) => id === busy)?.work?.step.rowMs ?? 0;
  if (rowMs === 0) return undefined;
  const again = decideAgain({ question, snapshot: withQueue(snapshot, busy) }, priced);
  if (again.kind !== 'place') return `with a longer queue the request is not placed, but: ${again.kind}`;
  if (again.policy !== PRICED) return `with a longer queue the request has no price: ${again.placement.reason}`;
  const isSame = again.placement.decode === placement.decode && again.placement.prefill === placement.prefill;
  // The cheapest one may have been left for its targets, and is taken again where none is within them any more.
  if (!isSame && question.targets) return undefined;
  // A request that waits for room may have its turn in the queue before.
  const lowest = isSame && hasRoom(question, snapshot, placement.decode) ? priceMs + rowMs : priceMs;
  return (again.priceMs ?? NaN) >= lowest
    ? undefined
    : `${busy} costs ${priceMs} ms, and ${again.priceMs} ms with a longer queue`;
}

/** Returns whether the instance has the blocks and the place in a step that the request will take. */
function hasRoom({ numTokens, outputTokens }: Question, { decode, blockSize }: ClusterSnapshot, id: string): boolean {
  const work = decode.find((one) => one.id === id)?.work;
  if (!work) return false;
  const { freeBlocks, waitingBlocks, generating, coming, prompts, maxNumSeqs } = work;
  const numSeqs = generating.sequences + Math.max(coming.sequences, prompts.sequences) + 1;
  return freeBlocks - waitingBlocks >= Math.ceil((numTokens + outputTokens) / blockSize) && numSeqs <= maxNumSeqs;
}

function withQueue({ decode, prefill, ...rest }: ClusterSnapshot, busy: string): ClusterSnapshot {
  const busier = (instances: readonly InstanceSnapshot[]): InstanceSnapshot[] =>
    instances.map((one) => {
      if (one.id !== busy || !one.work) return one;
      const prompts = { ...one.work.prompts, tokens: one.work.prompts.tokens + MORE_TOKENS };
      return { ...one, work: { ...one.work, prompts } };
    });
  return { ...rest, decode: busier(decode), prefill: busier(prefill) };
}
