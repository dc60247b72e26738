/**
 * Why tokens of a prompt were computed: the chain of its blocks is classified when it is placed, each block by the reason that it would
 * have if it were computed; the reports then say how many tokens, the last ones of the prompt, were.
 *
 *   blocks        ████████████▒▒▒▒▒▒▒▒░░░░░░░░░░░░░░░░
 *   the index     held, fetched   held       nobody has them
 *   if computed   absent          held_elsewhere   evicted, lost, other_scope or never_seen      tail
 */
import type { Digest } from '../../../shared/kv/block_key.ts';
import type { Source } from '../../../shared/protocol/messages.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { HeldSnapshot } from '../../../shared/placement/policy.ts';
import type { Miss, MissReason } from '../../../shared/protocol/router_api.ts';
import { nodeOf, tierOf, type GoneBlock, type GoneKeys } from './gone_keys.ts';
import { PromptScopes } from './prompt_scopes.ts';

/** Upper bound of the runs of a request (P1), its tail included; the shortest become part of a neighbour. */
const MAX_RUNS = 16;
/**
 * Blocks in a row that have not gone, after which one in so many is looked up: what follows a block that nobody announced was not announced
 * either, since a key names all tokens before it.
 */
const STRIDE = 16;

/** A placed prompt: what it consists of, what the index said of it, and what the placement fetches. */
export interface PlacedPrompt {
  readonly tokens: Uint32Array;
  readonly blockSize: number;
  /** Digest that the chain starts from. */
  readonly root: Digest;
  /** Keys of the full blocks before the tail, two words each. */
  readonly keys: Int32Array;
  /** Ranges that the index had when the prompt was placed; undefined where it was not asked. */
  readonly held: readonly HeldSnapshot[] | undefined;
  /** Tokens of the prompt that the placement does not compute. */
  readonly heldTokens: number;
  /** Sources of all instances that work on the prompt. */
  readonly sources: readonly Source[];
}

type Reasons = Omit<Miss, 'start' | 'end'>;

const OTHER_SCOPE: Reasons = { reason: 'other_scope' };
const NEVER_SEEN: Reasons = { reason: 'never_seen' };

/** Blocks [start, end) and why they are computed, if they are. */
interface ReasonRun {
  readonly start: number;
  end: number;
  of: Reasons;
}

/** Tokens computed, by reason. */
export type MissTokens = Partial<Record<MissReason, number>>;

/** Reasons of one prompt. */
export class PromptMisses {
  /** Reasons that cover the whole prompt, ascending. */
  readonly all: readonly Miss[];
  readonly #numTokens: number;

  constructor(all: readonly Miss[]) {
    this.all = all;
    this.#numTokens = all.at(-1)?.end ?? 0;
  }

  /** Returns the reasons of the last `numComputed` tokens of the prompt. */
  of(numComputed: number): Miss[] {
    const from = this.#numTokens - Math.min(numComputed, this.#numTokens);
    return this.all.flatMap((miss) => (miss.end <= from ? [] : [miss.start >= from ? miss : { ...miss, start: from }]));
  }

  /** Returns how many of the last `numComputed` tokens have each reason. */
  tokens(numComputed: number): MissTokens {
    const tokens: MissTokens = {};
    for (const { start, end, reason } of this.of(numComputed)) tokens[reason] = (tokens[reason] ?? 0) + end - start;
    return tokens;
  }
}

/** Finds the reasons, for the prompts of all models. */
export class MissReasons {
  readonly #index: PrefixIndex;
  readonly #gone: GoneKeys;
  readonly #scopes = new PromptScopes();

  /** `gone` must be the listener of `index`. */
  constructor(index: PrefixIndex, gone: GoneKeys) {
    this.#index = index;
    this.#gone = gone;
  }

  /**
   * Returns the reasons of a prompt. To be called in the turn of the event loop in which it was placed: the index must not have changed.
   * `isRecorded`: whether the prompt counts as seen under its scope from now on.
   */
  classify(prompt: PlacedPrompt, isRecorded = true): PromptMisses {
    const { tokens, blockSize, root, keys, held = heldRanges(this.#index, keys) } = prompt;
    const numBlocks = keys.length / 2;
    const numElsewhere = this.#scopes.seenElsewhere(tokens, numBlocks, blockSize, root, isRecorded);
    const runs: ReasonRun[] = [];
    let at = 0;
    for (const range of held) {
      this.#addUnheld(runs, keys, at, range.start, numElsewhere);
      addHeld(runs, range, prompt);
      at = range.end;
    }
    this.#addUnheld(runs, keys, at, numBlocks, numElsewhere);
    const misses: Miss[] = shortened(runs).map(({ start, end, of }) => ({
      start: start * blockSize,
      end: end * blockSize,
      ...of,
    }));
    const tail = numBlocks * blockSize;
    if (tail < tokens.length) misses.push({ start: tail, end: tokens.length, reason: 'tail' });
    return new PromptMisses(misses);
  }

  /** Adds the runs of blocks [from, to), which nobody holds. */
  #addUnheld(runs: ReasonRun[], keys: Int32Array, from: number, to: number, numElsewhere: number): void {
    let numNew = 0;
    for (let block = from; block < to;) {
      const gone = this.#goneOf(keys[2 * block] ?? 0, keys[2 * block + 1] ?? 0);
      numNew = gone ? 0 : numNew + 1;
      const end = Math.min(to, block + (numNew < STRIDE ? 1 : STRIDE));
      if (gone) add(runs, block, end, { reason: gone.how, node: gone.node, tier: gone.tier, at: gone.at });
      else {
        const same = Math.min(end, Math.max(block, numElsewhere));
        add(runs, block, same, OTHER_SCOPE);
        add(runs, same, end, NEVER_SEEN);
      }
      block = end;
    }
  }

  #goneOf(low: number, high: number): GoneBlock | undefined {
    const unswept = this.#index.goneUnswept(low, high);
    if (!unswept) return this.#gone.find(low, high);
    return { how: unswept.how, node: nodeOf(unswept.holder), tier: tierOf(unswept.tiers), at: unswept.atMs };
  }
}

/** Returns the ranges of a chain with all holders, also those that cannot be asked now. */
function heldRanges(index: PrefixIndex, keys: Int32Array): HeldSnapshot[] {
  return index.ranges(keys).map(({ start, end, heldBy }) => ({
    start,
    end,
    holders: heldBy.map(({ holder: id, tiers: its }) => {
      const tier = tierOf(its);
      return { id, address: '', isOnDevice: tier === 'device', isInMemory: tier !== 'disk' };
    }),
  }));
}

/** Adds the runs of a held range: what the placement fetches or has, and what it leaves out. */
function addHeld(
  runs: ReasonRun[],
  { start, end, holders }: HeldSnapshot,
  { sources, heldTokens, blockSize }: PlacedPrompt,
): void {
  const used = Math.min(Math.max(start, Math.ceil(heldTokens / blockSize)), end);
  const source = sources.find((one) => !one.isComputing && one.start <= start && start < one.end);
  const [first] = holders;
  const nodeOfHolder = (holder: typeof first): Omit<Reasons, 'reason'> =>
    holder ? { node: nodeOf(holder.id), tier: holder.isOnDevice ? 'device' : holder.isInMemory ? 'dram' : 'disk' } : {};
  const from = holders.find(({ address }) => address === source?.address) ?? first;
  add(runs, start, used, { reason: 'absent', ...nodeOfHolder(from) });
  add(runs, used, end, { reason: 'held_elsewhere', ...nodeOfHolder(first) });
}

/** Adds blocks to the last run where that has the same reason; its time is that of the last block that went. */
function add(runs: ReasonRun[], start: number, end: number, of: Reasons): void {
  if (start >= end) return;
  const last = runs.at(-1);
  if (last?.of.reason !== of.reason || last.of.node !== of.node || last.of.tier !== of.tier) {
    runs.push({ start, end, of });
    return;
  }
  last.end = end;
  if (of.at !== undefined && of.at > (last.of.at ?? 0)) last.of = of;
}

/** Returns at most MAX_RUNS - 1 runs over the same blocks: short ones become part of the run before, or of the one after the first. */
function shortened(runs: ReasonRun[]): readonly ReasonRun[] {
  let kept = runs;
  for (let least = 2; kept.length >= MAX_RUNS; least *= 2) {
    const longer: ReasonRun[] = [];
    for (const run of kept) {
      const before = longer.at(-1);
      if (before && run.end - run.start < least) before.end = run.end;
      else if (before && before.end - before.start < least) longer.splice(-1, 1, { ...run, start: before.start });
      else longer.push(run);
    }
    kept = longer;
  }
  return kept;
}
