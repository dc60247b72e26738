/**
 * Keeps the prefix tree while somebody looks at it, and a minute longer.
 *
 *   first look ──► every holder is asked for its blocks and their parents ──► events keep the tree up to date ──► a minute without a look: dropped
 *
 * Until all holders have answered, or have failed to, the tree is not ready.
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import type { Log } from '../../../shared/base/log.ts';
import type { Network } from '../../../shared/net/network.ts';
import { snapshotPages } from '../../../shared/net/snapshot_pages.ts';
import type { BlockRun } from '../../../shared/protocol/block_events.ts';
import { unpackKeyWords } from '../../../shared/protocol/packing.ts';
import { unpackParents } from '../../../shared/protocol/parent_keys.ts';
import type { IndexFeed } from '../cluster/index_feed.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { AllMembers } from '../../../shared/placement/members_view.ts';
import type { PrefixIndex } from '../../../shared/placement/prefix_index/prefix_index.ts';
import type { BlocksBody } from '../../../shared/protocol/router_api.ts';
import { BlockTree } from './block_tree.ts';
import { TreeShape, type TreeQuery } from './tree_shape.ts';

/** Milliseconds without a look after which the tree is dropped. */
const KEPT_MS = 60_000;
/** Milliseconds for which a shape is shown. */
const SHAPED_MS = 1_000;
/** Milliseconds that the first look waits for the tree. */
const PATIENCE_MS = 1_000;
/** Holders that are asked at the same time. */
const MAX_ASKED = 4;
/** Words of keys that are added before other work gets a turn of the event loop. */
const SLICE_WORDS = 2 * 4_096;

/** Dependencies of a {@link TreeKeeper}. */
export interface TreeKeeperOptions {
  readonly feed: Pick<IndexFeed, 'onStored'>;
  readonly index: PrefixIndex;
  readonly view: Pick<AllMembers, 'all' | 'byHolder'>;
  readonly network: Network;
  readonly clock: Clock;
  readonly log: Log;
  /** Aborts when the router ends. */
  readonly signal: AbortSignal;
}

/** A tree that is kept. */
interface Kept {
  readonly tree: BlockTree;
  readonly loaded: Promise<void>;
  isReady: boolean;
  /** Whether every holder has named its blocks. */
  isWhole: boolean;
  lookedMs: number;
  /** Last shape, and when its making began. */
  shape: { readonly atMs: number; readonly made: Promise<TreeShape> } | undefined;
}

/** Answers `/api/blocks`. */
export class TreeKeeper {
  readonly #options: TreeKeeperOptions;
  #kept: Kept | undefined;

  constructor(options: TreeKeeperOptions) {
    this.#options = options;
  }

  /** Whether a tree is kept. */
  get isKept(): boolean {
    return this.#kept !== undefined;
  }

  /** Records that a request has looked for these blocks, two words per key; does nothing while no tree is kept. */
  use(keys: Int32Array): void {
    this.#kept?.tree.use(keys, this.#nowS);
  }

  /** Returns a part of the tree. Undefined when nobody holds the query's root. */
  async look(query: TreeQuery): Promise<BlocksBody | undefined> {
    const { clock, index, view } = this.#options;
    const kept = (this.#kept ??= this.#begin());
    kept.lookedMs = clock.nowMs();
    if (!kept.isReady) {
      const waiting = new AbortController();
      await Promise.race([kept.loaded, clock.sleep(PATIENCE_MS, waiting.signal)]);
      waiting.abort();
    }
    const head = { as_of: clock.wallMs(), is_ready: kept.isReady };
    if (!kept.isReady) return { ...head, total_blocks: index.size, holders: [], runs: [], is_truncated: false };
    if (!kept.shape || clock.nowMs() - kept.shape.atMs >= SHAPED_MS)
      kept.shape = { atMs: clock.nowMs(), made: TreeShape.of(kept.tree, index, clock) };
    const shape = await kept.shape.made;
    const found = shape.runs(query, (holder) => view.byHolder(holder)?.member.name);
    if (!found) return undefined;
    const { holders, runs, isTruncated } = found;
    const is_truncated = isTruncated || kept.tree.isTruncated || !kept.isWhole;
    return { ...head, total_blocks: shape.numBlocks, holders, runs, is_truncated };
  }

  get #nowS(): number {
    return Math.floor(this.#options.clock.wallMs() / 1_000);
  }

  #begin(): Kept {
    const { feed, index, clock } = this.#options;
    const tree = new BlockTree(index.size);
    feed.onStored = ({ keys, parents }: BlockRun) => {
      tree.add(keys, parents, this.#nowS);
    };
    const kept: Kept = {
      tree,
      isReady: false,
      isWhole: false,
      lookedMs: clock.nowMs(),
      shape: undefined,
      loaded: this.#load(tree).then((isWhole) => {
        kept.isReady = true;
        kept.isWhole = isWhole;
      }),
    };
    void this.#dropLater(kept);
    return kept;
  }

  /** Drops the tree once nobody has looked for a minute. */
  async #dropLater(kept: Kept): Promise<void> {
    const { feed, clock, signal } = this.#options;
    for (;;) {
      const leftMs = kept.lookedMs + KEPT_MS - clock.nowMs();
      if (leftMs <= 0 || signal.aborted) break;
      await clock.sleep(leftMs, signal);
    }
    feed.onStored = undefined;
    this.#kept = undefined;
  }

  /**
   * Adds the blocks of every holder; those of one that does not answer come with its events only. Returns whether all holders have
   * answered.
   */
  async #load(tree: BlockTree): Promise<boolean> {
    const holders = this.#options.view.all().values();
    let isWhole = true;
    const worker = async (): Promise<void> => {
      for (const holder of holders) isWhole = (await this.#loadFrom(holder, tree)) && isWhole;
    };
    await Promise.all(Array.from({ length: MAX_ASKED }, worker));
    return isWhole;
  }

  /** Returns whether all blocks of the holder are in the tree, or the holder is lost. */
  async #loadFrom({ id, member, lost }: Instance, tree: BlockTree): Promise<boolean> {
    const { clock, log } = this.#options;
    try {
      for await (const page of snapshotPages(this.#options, member.address, lost.signal)) {
        const keys = unpackKeyWords(page.keys);
        const parents = unpackParents(keys, page.parents);
        for (let at = 0; at < keys.length; at += SLICE_WORDS) {
          // When these blocks were used last is not known.
          tree.add(keys.subarray(at, at + SLICE_WORDS), parents?.subarray(at, at + SLICE_WORDS), 0);
          await clock.turn();
        }
      }
      return true;
    } catch (error) {
      log.debug({ holder: id, error: messageOf(error) }, 'no parents of its blocks');
      return lost.signal.aborted;
    }
  }
}
