/**
 * Cost of the loss of each node: blocks that no other node holds, and the time in which one engine would compute them again.
 *
 * Computed when it is asked for, at most once per second: the time grows with the number of sets of holders in the index, not with its
 * blocks. For hybrid models records of recurrent states count as blocks.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { pairsOf, stepMs, type InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { Instance } from '../cluster/instance.ts';
import type { AllMembers } from '../cluster/members_view.ts';
import type { PrefixIndex } from '../cluster/prefix_index.ts';
import type { LossCost } from './api_types.ts';

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
      const costs = new Map(this.#view.all().map((one) => [one.id, this.#costOf(one, only.get(one.id) ?? 0)]));
      this.#known = { atMs: nowMs, costs };
    }
    return this.#known.costs;
  }

  #costOf(instance: Instance, numBlocks: number): LossCost {
    const { models, model: first } = this.#view;
    const model = instance.model === undefined ? first : models.get(instance.model);
    const blockMs = model && this.#blockMs(instance, model.format.blockSize);
    const cost = numBlocks === 0 ? NO_COST : { only_blocks: numBlocks, only_bytes: numBlocks * blockBytes(instance) };
    return { ...cost, recompute_ms: blockMs === undefined ? null : numBlocks * blockMs };
  }

  /**
   * Returns the milliseconds per block of the fastest engine that would be left, of the node itself where there is no other; undefined
   * while none reports its work. Blocks of a store count as those of the first model.
   */
  #blockMs(lost: Instance, blockSize: number): number | undefined {
    const model = lost.model ?? this.#view.all().find((one) => one.model !== undefined)?.model;
    const engines = this.#view.all().filter((one) => one.model === model && one.load?.work);
    const others = engines.filter((one) => one !== lost);
    const speeds = (others.length > 0 ? others : engines).flatMap(({ load }) =>
      load?.work ? [tokenMs(load.work) * blockSize] : [],
    );
    return speeds.length > 0 ? Math.min(...speeds) : undefined;
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
