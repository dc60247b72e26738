/** The icicle of the prefix tree: what lies where, what is left out, where keys move to. Not covered: how it is drawn. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { BlockRunView, BlocksBody } from '../../shared/protocol/router_api.ts';
import { layOut, neighbour, pathTo, useClassOf, type IcicleBounds } from '../../services/dashboard/model/icicle.ts';

const bounds: IcicleBounds = { cells: 500, rows: 20, width: 0.001 };

function run(key: string, parent: string | null, depth: number, length: number, blocks: number): BlockRunView {
  return { key, parent, depth, length, blocks, children: 0, held_by: [[0, ['device']]], used_at: null };
}

function body(runs: BlockRunView[], total: number): BlocksBody {
  return { as_of: 0, is_ready: true, total_blocks: total, holders: ['decode-1'], runs, is_truncated: false };
}

/** 100 blocks: prompts under a (60) and b (40). */
const tree = body(
  [
    run('a', null, 0, 10, 60),
    run('b', null, 0, 40, 40),
    run('a1', 'a', 10, 30, 30),
    run('a2', 'a', 10, 5, 15),
    run('a2x', 'a2', 15, 10, 10),
  ],
  100,
);

test('each run is as wide as the blocks that begin with it, below its parent', () => {
  const { cells, rows, hidden } = layOut(tree, null, bounds);
  const rounded = (value: number): number => Math.round(value * 1_000) / 1_000;
  const at = Object.fromEntries(
    cells.map(({ run, start, end, row }) => [run?.key ?? 'all', [start, end, row].map(rounded)]),
  );
  assert.deepEqual(at, {
    all: [0, 1, 0],
    a: [0, 0.6, 1],
    b: [0.6, 1, 1],
    a1: [0, 0.3, 2],
    a2: [0.3, 0.45, 2],
    a2x: [0.3, 0.4, 3],
  });
  assert.deepEqual([rows, hidden], [4, 0]);
});

test('a layout with a focus begins with that run over the whole width', () => {
  const { cells } = layOut(tree, 'a', bounds);
  assert.deepEqual(
    cells.map(({ run, start, end }) => [run?.key, start, end]),
    [
      ['a', 0, 1],
      ['a1', 0, 0.5],
      ['a2', 0.5, 0.75],
      ['a2x', 0.5, 0.5 + 10 / 60],
    ],
  );
  assert.equal(layOut(tree, 'gone', bounds).cells[0]?.run, null);
});

test('a body that begins within the tree lays out runs whose parent it does not have', () => {
  const inner = body([run('a2', 'a', 10, 5, 15), run('a2x', 'a2', 15, 10, 10)], 15);
  assert.deepEqual(
    layOut(inner, 'a2', bounds).cells.map((cell) => cell.run?.key),
    ['a2', 'a2x'],
  );
});

test('bounds leave out narrow and deep runs, and count them', () => {
  assert.equal(layOut(tree, null, { ...bounds, width: 0.2 }).hidden, 2);
  assert.equal(layOut(tree, null, { ...bounds, rows: 3 }).hidden, 1);
  const many = body(
    Array.from({ length: 5_000 }, (_, i) => run(`k${i}`, null, 0, 1, 1)),
    5_000,
  );
  const { cells, hidden } = layOut(many, null, { ...bounds, width: 0 });
  assert.deepEqual([cells.length, hidden], [500, 4_501]);
});

test('children never leave their parent, whatever the sizes say', () => {
  const wrong = body([run('a', null, 0, 1, 3), run('a1', 'a', 1, 50, 50)], 3);
  const cells = layOut(wrong, null, bounds).cells;
  for (const cell of cells) assert(cell.start >= 0 && cell.end <= 1);
});

test('arrow keys go to the parent, the widest child and the sisters', () => {
  const { cells } = layOut(tree, null, bounds);
  const cell = (key: string): (typeof cells)[number] => cells.find(({ run }) => run?.key === key)!;
  assert.equal(neighbour(cells, cell('a'), 'right').run?.key, 'b');
  assert.equal(neighbour(cells, cell('b'), 'right').run?.key, 'b');
  assert.equal(neighbour(cells, cell('a'), 'down').run?.key, 'a1');
  assert.equal(neighbour(cells, cell('a2x'), 'up').run?.key, 'a2');
  assert.equal(neighbour(cells, cell('a'), 'up').run, null);
});

test('the age of the last use has a class, and none where it is not known', () => {
  assert.deepEqual(
    [0, 59_999, 60_000, 3_600_000, 1e9].map((age) => useClassOf(1e10 - age, 1e10)),
    [0, 0, 1, 3, 4],
  );
  assert.equal(useClassOf(null, 1), undefined);
});

test('the path to a run ends where a parent is not known', () => {
  const runs = new Map(tree.runs.map((one) => [one.key, one]));
  assert.deepEqual(
    pathTo(runs, 'a2x').map(({ key }) => key),
    ['a', 'a2', 'a2x'],
  );
  runs.delete('a');
  assert.deepEqual(
    pathTo(runs, 'a2x').map(({ key }) => key),
    ['a2', 'a2x'],
  );
});
