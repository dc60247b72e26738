/**
 * Layout of the prefix tree as an icicle: one rectangle for each run of blocks, its children below it, each as wide as the blocks that begin
 * with it. A part of a rectangle that has no child below is the run's own blocks, or children that are too narrow to show.
 *
 * ```
 *  | all prompts                      |   row 0
 *  | system prompt A    | B           |   row 1
 *  | user 1 | user 2 |  | user 3 |    |   row 2
 * ```
 */
import { hierarchy, partition, type HierarchyNode } from 'd3-hierarchy';
import type { BlockRunView, BlocksBody } from '../../../shared/protocol/router_api.ts';

/** Rectangle of one run. Positions are shares of the whole width, in [0, 1]. */
export interface IcicleCell {
  /** Null for the rectangle that stands for all prompts. */
  readonly run: BlockRunView | null;
  readonly start: number;
  readonly end: number;
  readonly row: number;
  /** Blocks of the run and all below it. */
  readonly blocks: number;
}

/** Rectangles of a tree, parents before their children, and the runs that have none because they would be too narrow. */
export interface Icicle {
  readonly cells: readonly IcicleCell[];
  readonly rows: number;
  /** Runs of the body that are not drawn: too narrow, too deep, or beyond the bound of cells. */
  readonly hidden: number;
}

/** Bounds of a layout. */
export interface IcicleBounds {
  /** Most rectangles. */
  readonly cells: number;
  /** Most rows. */
  readonly rows: number;
  /** Narrowest rectangle that is drawn, as a share of the width. */
  readonly width: number;
}

interface TreeNode {
  readonly run: BlockRunView | null;
  readonly children: TreeNode[];
}

/**
 * Returns the run that a layout begins with: that of `focus`; null for all prompts, also where the body does not have the run.
 */
export function focusOf(runs: readonly BlockRunView[], focus: string | null): BlockRunView | null {
  return focus === null ? null : (runs.find(({ key }) => key === focus) ?? null);
}

/** Returns the rectangles of `body` below `focus` (the key of a run; null: all prompts). The first one is as wide as the whole. */
export function layOut(body: BlocksBody, focus: string | null, bounds: IcicleBounds): Icicle {
  const root = treeOf(body.runs, focusOf(body.runs, focus));
  const laidOut = partition<TreeNode>()(valued(hierarchy(root), body));
  const cells: IcicleCell[] = [];
  let numRuns = 0;
  // Breadth first: with a bound on the cells, the wide rows near the root come first.
  for (const node of laidOut) {
    if (node.data.run) numRuns++;
    const isShown = node.depth < bounds.rows && node.x1 - node.x0 >= bounds.width && cells.length < bounds.cells;
    if (!isShown) continue;
    cells.push({ run: node.data.run, start: node.x0, end: node.x1, row: node.depth, blocks: node.value ?? 0 });
  }
  const numShown = cells.filter(({ run }) => run !== null).length;
  return { cells, rows: Math.max(0, ...cells.map(({ row }) => row)) + 1, hidden: numRuns - numShown };
}

/** Returns the tree below `top`; runs whose parent the body leaves out are children of the rectangle of all prompts. */
function treeOf(runs: readonly BlockRunView[], top: BlockRunView | null): TreeNode {
  const all: TreeNode = { run: null, children: [] };
  const byKey = new Map<string, TreeNode>();
  for (const run of runs) byKey.set(run.key, { run, children: [] });
  for (const node of byKey.values()) {
    const parent = node.run?.parent ?? null;
    (parent === null ? all : (byKey.get(parent) ?? all)).children.push(node);
  }
  return (top && byKey.get(top.key)) ?? all;
}

/** Gives each node the blocks that the body says; the width of children that the body leaves out stays empty. */
function valued(root: HierarchyNode<TreeNode>, body: BlocksBody): HierarchyNode<TreeNode> {
  root.eachAfter((node) => {
    const below = (node.children ?? []).reduce((sum, child) => sum + (child.value ?? 0), 0);
    const own = node.data.run?.blocks ?? (node.depth === 0 ? body.total_blocks : 0);
    // `value` is the one field of a node that `sum` and `count` assign, and neither takes sums that are known.
    (node as { value?: number }).value = Math.max(own, below);
  });
  return root;
}

/** Direction in which a key moves the selection of an icicle. */
export type Direction = 'up' | 'down' | 'left' | 'right';

/** Returns the cell next to `from` in a direction, the nearest to its middle; `from` itself where there is none. */
export function neighbour(cells: readonly IcicleCell[], from: IcicleCell, direction: Direction): IcicleCell {
  const middle = (from.start + from.end) / 2;
  if (direction === 'up') {
    return cells.find(({ row, start, end }) => row === from.row - 1 && start <= middle && end >= middle) ?? from;
  }
  if (direction === 'down') {
    const below = cells.filter(({ row, start, end }) => row === from.row + 1 && start < from.end && end > from.start);
    return below[0] ?? from;
  }
  const row = cells.filter((cell) => cell.row === from.row).sort((a, b) => a.start - b.start);
  return row[row.indexOf(from) + (direction === 'left' ? -1 : 1)] ?? from;
}

/** Class of a run's last use: index into {@link USE_CLASSES}. */
export interface UseClass {
  readonly label: string;
  /** Upper bound of the age in milliseconds. */
  readonly below: number;
}

/** Ages by which runs are coloured, youngest first. */
export const USE_CLASSES: readonly UseClass[] = [
  { label: 'last minute', below: 60_000 },
  { label: 'last 10 minutes', below: 600_000 },
  { label: 'last hour', below: 3_600_000 },
  { label: 'last 6 hours', below: 21_600_000 },
  { label: 'before that', below: Infinity },
];

/** Returns the class of the time since the last use; undefined where the time of the last use is not known. */
export function useClassOf(usedAt: number | null, nowMs: number): number | undefined {
  if (usedAt === null) return undefined;
  return USE_CLASSES.findIndex(({ below }) => nowMs - usedAt < below);
}

/** Keys of the runs from the beginning of a prompt to `key`, as far as `runs` has them. */
export function pathTo(runs: ReadonlyMap<string, BlockRunView>, key: string): BlockRunView[] {
  const path: BlockRunView[] = [];
  const seen = new Set<string>();
  for (let at = runs.get(key); at && !seen.has(at.key); at = at.parent === null ? undefined : runs.get(at.parent)) {
    seen.add(at.key);
    path.unshift(at);
  }
  return path;
}
