/** Time to the first token on an instance without its queue: held blocks fetched, the rest computed. Explains decisions. */
import { pairsOf, stepMs, type InstanceWork } from '../protocol/instance_work.ts';
import type { Source } from '../protocol/messages.ts';
import { linkTable, type LinkSpeed } from './links.ts';
import type { LinkSnapshot } from './policy.ts';

/** Returns the milliseconds in which an idle instance computes rows [start, start + count) of a prompt, in as few steps as it can. */
export function computeMs(work: InstanceWork, start: number, count: number): number {
  return rowsMs(work, count, pairsOf(start, count), 0);
}

/** Returns the milliseconds of so many rows of prompts in as few steps as can be, of `sequences` prompts. */
export function rowsMs({ step, chunkTokens }: InstanceWork, rows: number, pairs: number, sequences: number): number {
  const numSteps = Math.ceil(rows / Math.max(1, chunkTokens));
  return stepMs({ ...step, constantMs: step.constantMs * numSteps }, { rows, pairs, contextTokens: 0, sequences });
}

/** Measured part of a fetch by one reader. */
interface Measured {
  /** Milliseconds for each byte of a block's record. */
  msPerByte: number;
  latencyMs: number;
  numBlocks: number;
  numHolders: number;
}

/**
 * Returns a function that tells the milliseconds in which a reader, by its id and with records of `blockBytes`, fetches the blocks of
 * `sources`: all over its own link, the first bytes after the longest latency.
 */
export function fetchTimes(
  sources: readonly Source[],
  { links, otherLink }: { readonly links: readonly LinkSnapshot[]; readonly otherLink: LinkSpeed },
): (to: string, blockBytes: number) => number {
  const table = linkTable(links);
  const blocks = new Map<string, number>();
  for (const { address, start, end } of sources) blocks.set(address, (blocks.get(address) ?? 0) + end - start);
  const numBlocks = sources.reduce((sum, { start, end }) => sum + end - start, 0);
  // Links are found by holder, since far fewer begin at the holders than end at all readers.
  const measured = new Map<string, Measured>();
  for (const [address, count] of blocks) {
    for (const { to, bytesPerMs, latencyMs } of table.byHolder.get(address) ?? []) {
      const its = measured.get(to) ?? { msPerByte: 0, latencyMs: 0, numBlocks: 0, numHolders: 0 };
      its.msPerByte += count / bytesPerMs;
      its.latencyMs = Math.max(its.latencyMs, latencyMs);
      its.numBlocks += count;
      its.numHolders++;
      measured.set(to, its);
    }
  }
  return (to, blockBytes) => {
    const its = measured.get(to);
    if (its?.numHolders === blocks.size) return its.msPerByte * blockBytes + its.latencyMs;
    const { bytesPerMs, latencyMs } = table.byReader.get(to)?.mean ?? otherLink;
    if (!its) return blocks.size === 0 ? 0 : (numBlocks * blockBytes) / bytesPerMs + latencyMs;
    const msPerByte = its.msPerByte + (numBlocks - its.numBlocks) / bytesPerMs;
    return msPerByte * blockBytes + Math.max(its.latencyMs, latencyMs);
  };
}
