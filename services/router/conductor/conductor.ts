/**
 * The cluster scheduler: places requests on instances. For each request it takes a snapshot of the cluster, asks the policy for a
 * decision, and logs question, snapshot and decision.
 *
 *   view, index ──snapshot──► policy ──decision──► relay
 *                                └──────► log, for people; nothing reads it to decide
 */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import { tiers } from '../../../shared/protocol/block_events.ts';
import type { MembersView } from '../cluster/members_view.ts';
import type { Instance } from '../cluster/instance.ts';
import type { PrefixIndex } from '../cluster/prefix_index.ts';
import { coveredTo } from './fetch_plan.ts';
import type {
  ClusterSnapshot,
  Decision,
  HeldSnapshot,
  InstanceSnapshot,
  Placement,
  Policy,
  Question,
} from './policy.ts';
import { Prices } from './prices.ts';

/** Bits of the tiers in memory, whose blocks are served without reading a disk. */
const MEMORY_TIERS = (1 << tiers.indexOf('device')) | (1 << tiers.indexOf('dram'));
/** Upper bounds of the logged decisions, and of the instances and holders in all their snapshots (P1). */
const MAX_LOGGED = 256;
const MAX_LOGGED_INSTANCES = 16_384;

/** Milliseconds to wait when the policy has chosen an instance that is not a member. */
const GONE_MS = 100;

/** Instances that one request avoids (`has`), and whether a holder may be asked for blocks (`isHolder`). */
interface Avoided {
  has(instance: Instance): boolean;
  isHolder(instance: Instance): boolean;
}

/** A placement request from the relay: the tokens of one request, and which instances to avoid. */
export interface Asked {
  readonly requestId: string;
  readonly numTokens: number;
  /** Block keys of the full blocks before the tail, two words per key, low word first. */
  readonly keys: Int32Array;
  readonly maxLength: number;
  readonly avoided: Avoided;
  readonly retryAvoided?: boolean;
  /** Whether the embedding of the prompt is wanted, not its next token. */
  readonly isEmbedding?: boolean;
  /** The decode instance is chosen already and holds blocks [0, from). */
  readonly decode?: { readonly instance: Instance; readonly from: number };
}

/** A placement with its instances, which are members, in place of their ids. */
export type Chosen = Omit<Placement, 'decode' | 'prefill'> & {
  readonly decode: Instance;
  readonly prefill: Instance | undefined;
};

/** Result of a placement request: the chosen instances, or the policy's wait or reject decision. */
export type Outcome = { readonly kind: 'place'; readonly chosen: Chosen } | Exclude<Decision, { kind: 'place' }>;

/** One entry of the decision log, which `/api/decisions` shows: the question, the snapshot and the decision of the policy. */
export interface LoggedDecision {
  /** Time of the decision on the router's clock, in ms. */
  readonly atMs: number;
  readonly requestId: string;
  readonly question: Question;
  readonly snapshot: ClusterSnapshot;
  readonly decision: Decision;
}

/** Dependencies of the {@link Conductor} of one model. */
export interface ConductorOptions {
  readonly view: MembersView;
  readonly index: PrefixIndex;
  readonly policy: Policy;
  readonly clock: Clock;
  /** Tie-break number of this router. Several routers differ in the number, so that they do not all choose the same instance. */
  readonly tieBreak: number;
}

/** The cluster scheduler of one model: places requests on instances through the policy, learns their prices, and logs its decisions. */
export class Conductor {
  readonly #options: ConductorOptions;
  readonly #startMs: number;
  readonly #log: LoggedDecision[] = [];
  readonly #prices = new Prices();
  #numLogged = 0;

  constructor(options: ConductorOptions) {
    this.#options = options;
    this.#startMs = options.clock.nowMs();
  }

  /** Logged decisions, the newest last. */
  get log(): readonly LoggedDecision[] {
    return this.#log;
  }

  /** Updates the prices of an instance from the report of a call. */
  learn({ id }: Instance, report: Report): void {
    // Ignore an instance that has left: nothing would delete its prices again.
    if (this.#options.view.byHolder(id)) this.#prices.learn(id, report);
  }

  /** Deletes the prices of an instance that has left the cluster. */
  forget({ id }: Instance): void {
    this.#prices.forget(id);
  }

  decide(asked: Asked): Outcome {
    const { requestId, numTokens, keys, maxLength, retryAvoided = false, isEmbedding = false, decode } = asked;
    const question: Question = {
      ...{ numTokens, maxLength, retryAvoided, isEmbedding, numBlocks: keys.length / 2 },
      decode: decode && { id: decode.instance.id, from: decode.from },
    };
    const snapshot = this.#snapshot(asked);
    const decision = this.#options.policy.decide(question, snapshot);
    this.#remember({ atMs: this.#options.clock.nowMs(), requestId, question, snapshot, decision });
    if (decision.kind !== 'place') return decision;
    const { view } = this.#options;
    const { placement } = decision;
    // Decision and look-up happen in one turn of the event loop, so the instances of the snapshot are still members.
    const chosenDecode = decode?.instance ?? view.byHolder(placement.decode);
    if (!chosenDecode) return { kind: 'wait', why: 'one is expected', forMs: GONE_MS };
    const prefill = placement.prefill === undefined ? undefined : view.byHolder(placement.prefill);
    return { kind: 'place', chosen: { ...placement, decode: chosenDecode, prefill } };
  }

  #remember(entry: LoggedDecision): void {
    this.#log.push(entry);
    this.#numLogged += sizeOf(entry);
    while (this.#log.length > MAX_LOGGED || (this.#numLogged > MAX_LOGGED_INSTANCES && this.#log.length > 1)) {
      const oldest = this.#log.shift();
      if (oldest) this.#numLogged -= sizeOf(oldest);
    }
  }

  /** Returns how many blocks from the first on somebody holds. */
  heldBlocks(keys: Int32Array, avoided: Avoided): number {
    return coveredTo(this.#ranges(keys, avoided), 0);
  }

  /** Returns the ranges of a chain that are held, with the holders that may be asked for them. */
  #ranges(keys: Int32Array, avoided: Avoided): HeldSnapshot[] {
    const { view, index } = this.#options;
    return index.ranges(keys).map(({ start, end, heldBy }) => ({
      ...{ start, end },
      holders: heldBy.flatMap(({ holder: id, tiers: its }) => {
        const holder = view.byHolder(id);
        if (!holder?.isCounted || !avoided.isHolder(holder)) return [];
        return [{ id, address: holder.member.address, isInMemory: (its & MEMORY_TIERS) !== 0 }];
      }),
    }));
  }

  #snapshot({ keys, maxLength, avoided }: Asked): ClusterSnapshot {
    const { view, clock } = this.#options;
    const nowMs = clock.nowMs();
    const seenMs = view.decodeSeenMs(maxLength);
    const of = (role: 'decode' | 'prefill'): InstanceSnapshot[] =>
      view.of(role).map((instance) => ({
        id: instance.id,
        name: instance.member.name,
        address: instance.member.address,
        maxModelLen: instance.maxModelLen,
        queueLength: instance.queueLength,
        isPlaceable: instance.isPlaceable,
        isAvoided: avoided.has(instance),
        price: this.#prices.of(instance.id),
      }));
    return {
      blockSize: view.model?.format.blockSize ?? 1,
      ...{ decode: of('decode'), prefill: of('prefill'), ranges: this.#ranges(keys, avoided) },
      tieBreak: view.otherRouters.length > 0 ? this.#options.tieBreak : 0,
      ageMs: nowMs - this.#startMs,
      withoutDecodeMs: seenMs === undefined ? undefined : nowMs - seenMs,
    };
  }
}

function sizeOf({ snapshot: { decode, prefill, ranges } }: LoggedDecision): number {
  return decode.length + prefill.length + ranges.reduce((sum, { holders }) => sum + 1 + holders.length, 0);
}
