/**
 * The prefix index by itself: look-ups and ingest at full size, alone and while both run, bytes a block, and the longest pause.
 *
 * Blocks lie in chains of 512, each held by a store's DRAM and disk and by one engine or two, as in a cluster.
 */
import { Random } from '../../shared/base/random.ts';
import { PrefixIndex } from '../../shared/placement/prefix_index/prefix_index.ts';
import { dynamoName, measureDynamo } from './dynamo_peer.ts';
import { withReference, type Figure } from './figures.ts';

export interface IndexBenchOptions {
  readonly numBlocks: number;
  readonly numHolders: number;
  readonly hasPeer: boolean;
  readonly onFigure: (figure: Figure) => void;
  readonly print: (line: string) => void;
}

const CHAIN_BLOCKS = 512;
const SLICE_BLOCKS = 2_048;
/** Milliseconds that each measurement takes. */
const MEASURE_MS = 3_000;

export function benchIndex({ numBlocks, numHolders, hasPeer, onFigure, print }: IndexBenchOptions): Figure[] {
  const figures: Figure[] = [];
  const push = (figure: Figure): void => {
    figures.push(figure);
    onFigure(figure);
  };
  // At a tenth of the blocks: its events are text.
  const peer = hasPeer
    ? measureDynamo(
        { numChains: Math.ceil(numBlocks / CHAIN_BLOCKS / 10), chainBlocks: CHAIN_BLOCKS, numHolders },
        print,
      )
    : undefined;
  const compared = (name: string, value: number, reference: number | undefined): Figure =>
    reference === undefined
      ? { name, value, unit: 'M blocks/s' }
      : withReference(name, value, 'M blocks/s', dynamoName, reference);
  const random = new Random(7);
  const numChains = Math.ceil(numBlocks / CHAIN_BLOCKS);
  // XXH64 keys look like this.
  const keys = Int32Array.from({ length: 2 * numChains * CHAIN_BLOCKS }, () => random.u32());
  const chain = (i: number): Int32Array => keys.subarray(2 * CHAIN_BLOCKS * i, 2 * CHAIN_BLOCKS * (i + 1));
  const engineOf = (i: number): string => `engine-${i % (numHolders / 2)}/e`;
  const storeOf = (i: number): string => `store-${i % (numHolders / 2)}/e`;

  const before = process.memoryUsage().rss;
  const index = new PrefixIndex(2 * numBlocks);
  let longestMs = 0;
  const pauses: number[] = [];
  const timed = (work: () => void): number => {
    const start = performance.now();
    work();
    const ms = performance.now() - start;
    if (ms > 4) pauses.push(ms);
    longestMs = Math.max(longestMs, ms);
    return ms;
  };
  /** Runs of one tier and holder, as batches have them. */
  const notify = (holder: string, isStored: boolean, tier: 'device' | 'dram' | 'disk', words: Int32Array): number => {
    let ms = 0;
    for (let at = 0; at < words.length; at += 2 * SLICE_BLOCKS) {
      const slice = words.subarray(at, at + 2 * SLICE_BLOCKS);
      ms += timed(() => {
        index.apply(holder, { operation: isStored ? 'stored' : 'removed', tier, keys: slice });
      });
    }
    return ms;
  };
  let fillMs = 0;
  for (let i = 0; i < numChains; i++) {
    fillMs += notify(storeOf(i), true, 'dram', chain(i));
    fillMs += notify(storeOf(i), true, 'disk', chain(i));
    fillMs += notify(engineOf(i), true, 'device', chain(i));
  }
  push(compared('index/fill', (3 * numChains * CHAIN_BLOCKS) / fillMs / 1_000, peer?.fill));
  push({ name: 'index/fill/longest-pause', value: longestMs, unit: 'ms' });
  push({ name: 'index/bytes-per-block', value: index.bytes / index.size, unit: 'bytes' });
  const grown = process.memoryUsage().rss - before;
  push({ name: 'index/memory', value: grown / 2 ** 20, unit: 'MiB' });
  print(`pauses of more than 4 ms: ${pauses.map((ms) => ms.toFixed(1)).join(' ')}`);
  print(`${index.size} blocks of ${numHolders} holders, ${index.numSets} sets`);

  const asking = new Random(9);
  const lookUps = (isFresh: boolean): void => {
    let [ms, numLookedUp] = [0, 0];
    const seen = new Set<number>();
    while (ms < MEASURE_MS && (!isFresh || seen.size < numChains / 2)) {
      const i = asking.below(numChains);
      if (isFresh && seen.has(i)) continue;
      seen.add(i);
      ms += timed(() => {
        numLookedUp += index.ranges(chain(i)).reduce((sum, { start, end }) => sum + end - start, 0);
      });
    }
    push(compared(`index/look-up/${isFresh ? 'walking' : 'jumping'}`, numLookedUp / ms / 1_000, peer?.lookUp));
  };
  longestMs = 0;
  lookUps(true);
  for (let i = 0; i < numChains; i++) index.ranges(chain(i));
  lookUps(false);

  // An engine's blocks come and go, chain by chain, while questions are asked.
  let [ingestMs, numIngested, lookUpMs, numLookedUp] = [0, 0, 0, 0];
  while (ingestMs < MEASURE_MS) {
    const [i, other] = [asking.below(numChains), asking.below(numChains)];
    // One goes from here, one comes there.
    ingestMs += notify(engineOf(i), false, 'device', chain(i));
    ingestMs += notify(engineOf(other + 1), true, 'device', chain(other));
    numIngested += 2 * CHAIN_BLOCKS;
    for (let k = 0; k < 2; k++) {
      const asked = asking.below(numChains);
      lookUpMs += timed(() => {
        numLookedUp += index.ranges(chain(asked)).reduce((sum, { start, end }) => sum + end - start, 0);
      });
    }
  }
  push(compared('index/both/ingest', numIngested / ingestMs / 1_000, peer?.ingest));
  push({ name: 'index/both/look-up', value: numLookedUp / lookUpMs / 1_000, unit: 'M blocks/s' });
  push({ name: 'index/both/longest-pause', value: longestMs, unit: 'ms' });
  longestMs = 0;
  timed(() => {
    index.removeHolder(storeOf(0));
  });
  push({ name: 'index/drop-a-holder', value: longestMs, unit: 'ms' });
  return figures;
}
