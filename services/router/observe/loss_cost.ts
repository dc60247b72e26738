/**
 * Cost of the loss of each node: blocks that no other node holds, and the time in which one engine would compute them again.
 *
 * Computed when it is asked for, at most once per second: the time grows with the number of sets of holders in the index, not with its
 * blocks. For hybrid models records of recurrent states count as blocks.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { pairsOf, stepMs, type InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { AllMembers } from '../../../shared/placement/members_view.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { LossCost } from '../../../shared/protocol/router_api.ts';

/** Milliseconds for which the costs are kept. */
const KEPT_MS = 1_000;
const NO_COST = { only_blocks: 0, only_bytes: 0 };

/** Costs of the loss of every member. */
export class LossCosts {
  readonly #index: PrefixIndex;
  readonly #view: AllMembers;
  readonly #clock: Clock;
  #known: { readonly atMs: number; readonly costs: ReadonlyMap<string, LossCost> } | undefined;

  constructor(index: PrefixIndex, view: AllMembers, clock: Clock) {
    this.#index = index;
    this.#view = view;
    this.#clock = clock;
  }

  /** Returns the cost of each member by its id as a holder, as of the last second. */
  get(): ReadonlyMap<string, LossCost> {
    const nowMs = this.#clock.nowMs();
    if (!this.#known || nowMs - this.#known.atMs >= KEPT_MS) {
      const only = this.#index.onlyHeld();
      const members = this.#view.all();
      const speeds = new Speeds(members);
      const costs = new Map(members.map((one) => [one.id, this.#costOf(one, only.get(one.id) ?? 0, speeds)]));
      this.#known = { atMs: nowMs, costs };
    }
    return this.#known.costs;
  }

  #costOf(instance: Instance, numBlocks: number, speeds: Speeds): LossCost {
    const { models, model: first } = this.#view;
    const model = instance.model === undefined ? first : models.get(instance.model);
    const perToken = speeds.without(instance);
    const blockMs = model && perToken !== undefined ? perToken * model.format.blockSize : undefined;
    const cost = numBlocks === 0 ? NO_COST : { only_blocks: numBlocks, only_bytes: numBlocks * blockBytes(instance) };
    return { ...cost, recompute_ms: blockMs === undefined ? null : numBlocks * blockMs };
  }
}

/** Milliseconds per token of the two fastest engines of each model, found in one pass over the members. */
class Speeds {
  readonly #fastest = new Map<string | undefined, { readonly one: Instance; readonly ms: number; second?: number }>();
  /** Model whose engines count for blocks of a store: the first one's. */
  readonly #first: string | undefined;

  constructor(members: readonly Instance[]) {
    this.#first = members.find(({ model }) => model !== undefined)?.model;
    for (const one of members) if (one.load?.work) this.#add(one, tokenMs(one.load.work));
  }

  #add(one: Instance, ms: number): void {
    const known = this.#fastest.get(one.model);
    if (!known) this.#fastest.set(one.model, { one, ms });
    else if (ms < known.ms) this.#fastest.set(one.model, { one, ms, second: known.ms });
    else known.second = Math.min(ms, known.second ?? Infinity);
  }

  /**
   * Returns the milliseconds per token of the fastest engine that is left without `lost`, those of `lost` itself where there is no other;
   * undefined while none reports its work.
   */
  without(lost: Instance): number | undefined {
    const known = this.#fastest.get(lost.model ?? this.#first);
    return known?.one === lost ? (known.second ?? known.ms) : known?.ms;
  }
}

/** Returns the milliseconds per token of a prompt in full chunks, each attending to itself alone. */
function tokenMs({ step, chunkTokens }: InstanceWork): number {
  const rows = Math.max(1, chunkTokens);
  return stepMs(step, { rows, pairs: pairsOf(0, rows), contextTokens: 0, sequences: 1 }) / rows;
}

/** Returns the bytes of a block as an engine sends it, of a store the mean over its tiers. */
function blockBytes({ load }: Instance): number {
  if (load?.work) return load.work.blockBytes;
  const tiers = Object.values(load?.tiers ?? {});
  const sum = (value: (tier: (typeof tiers)[number]) => number): number =>
    tiers.reduce((total, tier) => total + value(tier), 0);
  const numBlocks = sum(({ blocks }) => blocks);
  return numBlocks === 0 ? 0 : sum(({ bytes }) => bytes) / numBlocks;
}
