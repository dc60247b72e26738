/**
 * The cluster scheduler: places requests on instances. For each request it takes a snapshot of the cluster, asks the policy for a
 * decision, and logs question, snapshot and decision.
 *
 *   view, index ──snapshot──► policy ──decision──► relay
 *                                └──────► log, for people; nothing reads it to decide
 */
import type { Clock } from '../base/clock.ts';
import type { Random } from '../base/random.ts';
import type { Report, Source } from '../protocol/messages.ts';
import type { BlockHash } from '../kv/block_key.ts';
import type { MembersView } from './members_view.ts';
import type { Instance } from './instance.ts';
import type { PrefixIndex } from './prefix_index/prefix_index.ts';
import { DecisionLog, type LoggedDecision } from './decision_log.ts';
import { coveredTo, matchesOf } from './fetch_plan.ts';
import { heldRanges, type Avoided, type HeldHolder, type Holders } from './held_ranges.ts';
import { withHandoffs } from './handoff_sources.ts';
import { usablePrefix, withStateSources } from './held_states.ts';
import { PredictionCorrection } from './prediction_correction.ts';
import { PromisedBlocks } from './promised_blocks.ts';
import { Links } from './links.ts';
import { OpenFetches } from './open_fetches.ts';
import { placedWork, type PlacementWork } from './placed_work.ts';
import type {
  ClusterSnapshot,
  Decision,
  Explanation,
  HeldSnapshot,
  InstanceSnapshot,
  Placement,
  Policy,
  Question,
  SecondPrefill,
  Targets,
} from './policy.ts';

/** Milliseconds to wait when the policy has chosen an instance that is not a member. */
const GONE_MS = 100;
/** Random numbers of a decision that is not carried out. */
const EVEN_CHANCE: ClusterSnapshot['random'] = [0.5, 0.5];

/** A placement request from the relay: the tokens of one request, and which instances to avoid. */
export interface Asked {
  readonly requestId: string;
  readonly numTokens: number;
  /** Block keys of the full blocks before the tail, two words per key, low word first. */
  readonly keys: Int32Array;
  /** Hashes of these blocks, by which recurrent states are found; may be left out for a model without. */
  readonly hashes?: readonly BlockHash[];
  readonly maxLength: number;
  readonly avoided: Avoided;
  readonly retryAvoided?: boolean;
  /** Whether the embedding of the prompt is wanted, not its next token. */
  readonly isEmbedding?: boolean;
  /** The decode instance is chosen already and holds blocks [0, from). */
  readonly decode?: { readonly instance: Instance; readonly from: number };
  /** Tokens that the answer is expected to have; all that it may have, when omitted. */
  readonly outputTokens?: number;
  readonly targets?: Targets | undefined;
  /** Milliseconds since the request arrived. */
  readonly waitedMs?: number;
  /** Whether an instance has worked for the request already. */
  readonly isBegun?: boolean;
  /** Numerics class of the instance that generated the output so far. */
  readonly numericsClass?: string | undefined;
}

/** A placement with its instances, which are members, in place of their ids. */
export type Chosen = Omit<Placement, 'decode' | 'prefill' | 'second'> & {
  readonly decode: Instance;
  readonly prefill: Instance | undefined;
  readonly second?: (Omit<SecondPrefill, 'prefill'> & { readonly instance: Instance }) | undefined;
  /** Work that the instances get, to be passed on to {@link Instance.place}. */
  readonly work: PlacementWork;
  /** Undefined for a placement that no policy chose. */
  readonly explanation: Explanation | undefined;
  /** Ranges of the question's blocks that the prefix index has, whether or not the placement uses them; undefined: it was not asked. */
  readonly held?: readonly HeldSnapshot[] | undefined;
};

/** Result of a placement request: the chosen instances, or the policy's wait or reject decision. */
export type Outcome = { readonly kind: 'place'; readonly chosen: Chosen } | Exclude<Decision, { kind: 'place' }>;

/** The ranges that a placement can use. */
type UsableHeld = Pick<ClusterSnapshot, 'ranges' | 'state' | 'hasStates'>;

/** Dependencies of the {@link Conductor} of one model. */
export interface ConductorOptions {
  readonly view: MembersView;
  readonly index: PrefixIndex;
  readonly policy: Policy;
  readonly clock: Clock;
  readonly random: Random;
  /** Tie-break number of this router. Several routers differ in the number, so that they do not all choose the same instance. */
  readonly tieBreak: number;
  /** Whether decisions are logged; true by default. A log of many decisions costs much memory management. */
  readonly isLogging?: boolean;
}

/** The cluster scheduler of one model: places requests on instances through the policy, learns the speed of links, and logs its decisions. */
export class Conductor {
  readonly #options: ConductorOptions;
  readonly #startMs: number;
  readonly #log = new DecisionLog();
  /** Speeds of the links between holders and this model's instances. */
  readonly links = new Links();
  /** Difference between the times that the policy predicts and real ones. */
  readonly correction = new PredictionCorrection();
  readonly #promised = new PromisedBlocks();
  readonly #fetches = new OpenFetches();
  /** When a request without any hit was last placed on an instance, by its id; bounded by the members (P1). */
  readonly #coldMs = new Map<string, number>();
  /** Last snapshot of each instance, by its id. */
  readonly #last = new Map<string, InstanceSnapshot>();
  #numDecisions = 0;

  constructor(options: ConductorOptions) {
    this.#options = options;
    this.#startMs = options.clock.nowMs();
  }

  /** Logged decisions, the newest last. */
  get log(): readonly LoggedDecision[] {
    return this.#log.entries;
  }

  /** Updates the links of an instance from the report of a call. */
  learn({ id }: Instance, report: Report): void {
    // Ignore an instance that has left: nothing would delete its links again.
    if (report.links.length > 0 && this.#options.view.byHolder(id)) this.links.learn(id, report.links);
  }

  /** Deletes what is known of an instance that has left the cluster. */
  forget({ id, member }: Instance): void {
    this.links.forget(id, member.address);
    this.#coldMs.delete(id);
    this.#last.delete(id);
    this.#promised.forget(id);
  }

  /**
   * Records that an instance will have the blocks `keys` of a placed request, of which it has or fetches the first `heldTokens`, from
   * `sources`. Returns the function to call when the request's prompt is computed there, or has failed; a second call does nothing.
   */
  promise(instance: Instance, keys: Int32Array, heldTokens: number, sources: readonly Source[]): () => void {
    const { id } = instance;
    const endFetch = this.fetch(instance, sources);
    // Ignore an instance that has left: nothing would forget its promises again.
    if (!this.#options.view.byHolder(id)) return endFetch;
    const end = this.#promised.promise(id, keys, heldTokens / (this.#options.view.model?.format.blockSize ?? 1));
    return () => {
      endFetch();
      end();
    };
  }

  /** Records that an instance fetches the blocks of `sources`. Returns the function to call when it has them; a second call does nothing. */
  fetch({ id, work }: Instance, sources: readonly Source[]): () => void {
    return this.#fetches.begin(id, sources, work?.blockBytes ?? 0);
  }

  /** Number of open promises and fetches: zero when no request is in flight (R2). */
  get numPromised(): number {
    return this.#promised.numOpen + this.#fetches.numOpen;
  }

  /** Places a request: logs and returns the chosen instances, or the policy's wait or reject. */
  decide(asked: Asked): Outcome {
    const { random } = this.#options;
    const chance = [random.u32() / 2 ** 32, random.u32() / 2 ** 32] as const;
    const { outcome, ...decided } = this.#consider(asked, chance);
    this.#numDecisions++;
    if (this.#options.isLogging !== false)
      this.#log.add({ atMs: this.#options.clock.nowMs(), requestId: asked.requestId, ...decided });
    if (outcome.kind === 'place' && outcome.chosen.heldTokens === 0) this.#noteCold(outcome.chosen);
    return outcome;
  }

  /** Returns what {@link decide} would, by even chances, and the ranges that are held. Nothing is recorded. */
  preview(asked: Asked): { readonly outcome: Outcome; readonly held: readonly HeldSnapshot[] } {
    return this.#consider(asked, EVEN_CHANCE);
  }

  #consider(
    asked: Asked,
    chance: ClusterSnapshot['random'],
  ): Pick<LoggedDecision, 'question' | 'snapshot' | 'decision'> & {
    readonly outcome: Outcome;
    readonly held: readonly HeldSnapshot[];
  } {
    const { numTokens, maxLength, decode } = asked;
    const question: Question = {
      numTokens,
      maxLength,
      numBlocks: asked.keys.length / 2,
      retryAvoided: asked.retryAvoided ?? false,
      isEmbedding: asked.isEmbedding ?? false,
      decode: decode && { id: decode.instance.id, from: decode.from },
      outputTokens: asked.outputTokens ?? Math.max(0, maxLength - numTokens),
      targets: asked.targets,
      waitedMs: asked.waitedMs ?? 0,
      isBegun: asked.isBegun ?? false,
      numericsClass: asked.numericsClass,
    };
    const holders = new Map<string, Holders>();
    const held = heldRanges(this.#options, asked.keys, asked.avoided, holders);
    const snapshot = this.#snapshot(asked, this.#usable(asked, held, holders), chance);
    const decision = this.#options.policy.decide(question, snapshot);
    return { question, snapshot, decision, held, outcome: this.#outcomeOf(decision, question, snapshot, asked, held) };
  }

  /** Returns a decision with the instances that it names. */
  #outcomeOf(
    decision: Decision,
    question: Question,
    snapshot: ClusterSnapshot,
    { decode }: Pick<Asked, 'decode'>,
    held: readonly HeldSnapshot[],
  ): Outcome {
    if (decision.kind !== 'place') return decision;
    const { view } = this.#options;
    const { kind, prediction, ...others } = decision;
    const addressOf = (id: string): string | undefined => view.byHolder(id)?.member.address;
    const placement = withHandoffs(
      snapshot.hasStates ? withStateSources(decision.placement, question, snapshot, addressOf) : decision.placement,
      addressOf,
    );
    const explanation: Explanation = {
      ...others,
      prediction: prediction && this.correction.corrected(prediction),
      uncorrected: prediction,
    };
    // Decision and look-up happen in one turn of the event loop, so the instances of the snapshot are still members.
    const chosenDecode = decode?.instance ?? view.byHolder(placement.decode);
    if (!chosenDecode) return { kind: 'wait', why: 'one is expected', forMs: GONE_MS };
    const prefill = placement.prefill === undefined ? undefined : view.byHolder(placement.prefill);
    const work = placedWork({ ...placement, prefill }, question, snapshot.blockSize);
    const second = this.#secondOf(placement);
    return { kind, chosen: { ...placement, decode: chosenDecode, prefill, second, work, explanation, held } };
  }

  #secondOf({ second }: Placement): Chosen['second'] {
    const instance = second && this.#options.view.byHolder(second.prefill);
    return instance && { ...second, instance };
  }

  /** Remembers when the instances of a placement got a request without any hit. */
  #noteCold({ decode, prefill, second }: Chosen): void {
    const nowMs = this.#options.clock.nowMs();
    for (const one of [decode, prefill, second?.instance]) if (one) this.#coldMs.set(one.id, nowMs);
  }

  /** Number of leading blocks that some holder has. */
  heldBlocks(keys: Int32Array, avoided: Avoided): number {
    return coveredTo(heldRanges(this.#options, keys, avoided), 0);
  }

  /** Returns the snapshot of an instance; the last one while nothing has changed, so that logged decisions share it. */
  #snapshotOf(instance: Instance, avoided: Avoided, mayGenerate: boolean): InstanceSnapshot {
    const { id, queueLength, isPlaceable, work } = instance;
    const isAvoided = avoided.has(instance);
    const coldAtMs = this.#coldMs.get(id);
    const last = this.#last.get(id);
    if (
      last?.queueLength === queueLength &&
      last.isPlaceable === isPlaceable &&
      last.isAvoided === isAvoided &&
      last.mayGenerate === mayGenerate &&
      last.work === work &&
      last.coldAtMs === coldAtMs
    )
      return last;
    const { member, maxModelLen, numericsClass } = instance;
    const { name, address } = member;
    const role = member.role === 'prefill' ? 'prefill' : 'decode';
    const now: InstanceSnapshot = {
      id,
      name,
      role,
      address,
      numericsClass,
      mayGenerate,
      maxModelLen,
      queueLength,
      isPlaceable,
      isAvoided,
      work,
      coldAtMs,
    };
    // Snapshots of members only, which bounds the map (P1).
    this.#last.set(id, now);
    return now;
  }

  /** Returns the part of the held ranges that a hybrid model can use, and the state at its end. */
  #usable({ hashes = [], avoided }: Asked, ranges: readonly HeldSnapshot[], known: Map<string, Holders>): UsableHeld {
    const { view } = this.#options;
    const { stateBytes = 0 } = view.model ?? {};
    if (stateBytes === 0) return { ranges };
    const holdersOf = (key: bigint): readonly HeldHolder[] =>
      heldRanges(this.#options, new Int32Array(BigUint64Array.of(key).buffer), avoided, known)[0]?.holders ?? [];
    return { ...usablePrefix(ranges, hashes, stateBytes, holdersOf), hasStates: true };
  }

  #snapshot(
    { keys, maxLength, avoided }: Asked,
    usable: UsableHeld,
    chance: ClusterSnapshot['random'],
  ): ClusterSnapshot {
    const { view, clock } = this.#options;
    const nowMs = clock.nowMs();
    const seenMs = view.decodeSeenMs(maxLength);
    const generating = new Set(view.generating());
    const snapshotOf = (instance: Instance): InstanceSnapshot =>
      this.#snapshotOf(instance, avoided, generating.has(instance));
    return {
      blockSize: view.model?.format.blockSize ?? 1,
      decode: view.of('decode').map(snapshotOf),
      prefill: view.of('prefill').map(snapshotOf),
      ...usable,
      promised: this.#promised.prefixes(keys, matchesOf(usable.ranges)),
      links: this.links.recent,
      otherLink: this.links.mean,
      fetching: this.#fetches.bytes,
      turn: this.#numDecisions,
      random: chance,
      tieBreak: view.otherRouters.length > 0 ? this.#options.tieBreak : 0,
      ageMs: nowMs - this.#startMs,
      withoutDecodeMs: seenMs === undefined ? undefined : nowMs - seenMs,
    };
  }
}
