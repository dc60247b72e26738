/** Prefixes of hybrid models as far as a state is held after them, and the sources of states. Budget: 1 s. */
import { expect, test } from 'vitest';
import { usablePrefix, withStateSources } from '../../shared/placement/held_states.ts';
import type { HeldSnapshot, Placement, StateSnapshot } from '../../shared/placement/policy.ts';
import { chainOf, type Digest } from '../../shared/kv/block_key.ts';
import { stateHashOf } from '../../shared/kv/record.ts';
import type { Source } from '../../shared/protocol/messages.ts';
import { cluster } from './snapshots.ts';

const hashes = chainOf(
  '0c'.repeat(16) as Digest,
  4,
  Array.from({ length: 48 }, (_, i) => i),
);

/** `a` has it on its device, `a~` on disk only. */
const holdersOf = (names: readonly string[]): HeldSnapshot['holders'] =>
  names.map((name) => {
    const address = name.replace('~', '');
    const isInMemory = !name.endsWith('~');
    return { id: `${address}/e`, address: `${address}:1`, isInMemory, isOnDevice: isInMemory };
  });
const held = (start: number, end: number, ...names: string[]): HeldSnapshot => ({
  start,
  end,
  holders: holdersOf(names),
});

/** Returns the usable prefix where `states` are held: their holders by the number of blocks before them. */
function usable(
  ranges: readonly HeldSnapshot[],
  states: Readonly<Record<number, readonly string[]>>,
): { readonly ranges: string; readonly state: StateSnapshot | undefined } {
  const byKey = new Map(
    Object.entries(states).map(([blocks, names]) => [stateHashOf(hashes[Number(blocks) - 1]!).key, names]),
  );
  const found = usablePrefix(ranges, hashes, 99, (key: bigint) => holdersOf(byKey.get(key as never) ?? []));
  const said = found.ranges.map(({ start, end, holders }) => {
    const names = holders.map(({ id, isOnDevice }) => `${id}${isOnDevice ? '' : ' not on its device'}`);
    return `${start}-${end} ${names.join(', ')}`;
  });
  return { ranges: said.join('; '), state: found.state };
}

test('a prefix ends at the last state that anybody holds, and without any it is of no use', () => {
  const ranges = [held(0, 6, 'a', 'b'), held(6, 10, 'a')];
  expect(usable(ranges, {})).toEqual({ ranges: '', state: undefined });
  expect(usable([], { 5: ['a'] })).toEqual({ ranges: '', state: undefined });
  expect(usable(ranges, { 10: ['a'] })).toEqual({
    ranges: '0-6 a/e, b/e without a state not on its device; 6-10 a/e',
    state: { blocks: 10, holders: holdersOf(['a']), bytes: 99 },
  });
  expect(usable(ranges, { 8: ['a'], 6: ['b'] }).ranges).toBe('0-6 a/e, b/e; 6-8 a/e');
  // Nobody has the blocks before the state.
  expect(usable(ranges, { 11: ['a'], 3: ['a', 'b'] }).ranges).toBe('0-3 a/e, b/e');
  expect(usable([held(0, 2, 'a'), held(4, 9, 'a')], { 9: ['a'], 2: ['a'] }).ranges).toBe('0-2 a/e');
});

test('after its own last state a holder serves its blocks, and is no instance that has them', () => {
  const { ranges, state } = usable([held(0, 10, 'a', 'b', 's~')], { 9: ['s~', 'b'], 4: ['a', 'b'] });
  expect(ranges).toBe(
    '0-4 a/e, b/e, s/e not on its device; 4-9 a/e without a state not on its device, b/e, s/e not on its device',
  );
  expect(state).toEqual({ blocks: 9, holders: holdersOf(['s~', 'b']), bytes: 99 });
});

const addressOf = (id: string): string => id.replace('/e', ':1');
const source = (name: string, start: number, end: number, isComputing = false): Source => ({
  address: `${name}:1`,
  start,
  end,
  isComputing,
});
const stateOf = (name: string, end: number, isComputing = false): Source => ({
  ...source(name, end - 1, end, isComputing),
  isState: true,
});

function placed(
  { decodeSources, prefillSources = [] }: { decodeSources: Source[]; prefillSources?: Source[] },
  { prefill, holders, tieBreak = 0 }: { prefill?: string; holders?: readonly string[]; tieBreak?: number } = {},
  runs: Record<string, number> = {},
): { readonly decode: readonly Source[]; readonly prefill: readonly Source[] } {
  const state = holders ? { blocks: 6, holders: holdersOf(holders), bytes: 99 } : undefined;
  const placement: Placement = {
    heldTokens: 24,
    maxSelfCompute: 0,
    reason: 'test',
    decode: 'd1/e',
    prefill,
    decodeSources,
    prefillSources,
  };
  const { ranges } = cluster(runs);
  const given = withStateSources(placement, { numBlocks: 10 }, { ranges, state, tieBreak }, addressOf);
  expect({ ...given, decodeSources, prefillSources }).toEqual(placement);
  return { decode: given.decodeSources, prefill: given.prefillSources };
}

test('a state comes from the instance itself, else from memory, else from a disk', () => {
  const decodeSources = [source('b', 0, 4), source('c', 4, 6)];
  const from = (holders: readonly string[], tieBreak = 0): Source | undefined =>
    placed({ decodeSources }, { holders, tieBreak }).decode[0];
  expect(from(['s~', 'b', 'd1~'])).toEqual(stateOf('d1', 6));
  expect(from(['s~', 'b'])).toEqual(stateOf('b', 6));
  expect(from(['s~', 'b', 'c'], 3)).toEqual(stateOf('c', 6));
  expect(from(['s~', 't~'], 1)).toEqual(stateOf('t', 6));
  expect(placed({ decodeSources }, { holders: ['b'] }).decode).toEqual([stateOf('b', 6), ...decodeSources]);
});

test('a prefill that computes the blocks hands over the state at their end', () => {
  const decodeSources = [source('p1', 0, 10, true)];
  const prefillSources = [source('b', 0, 6)];
  expect(placed({ decodeSources, prefillSources }, { prefill: 'p1/e', holders: ['b', 'd1'] })).toEqual({
    decode: [stateOf('p1', 10, true), ...decodeSources],
    prefill: [stateOf('b', 6), ...prefillSources],
  });
  expect(placed({ decodeSources }, { prefill: 'p1/e' })).toEqual({
    decode: [stateOf('p1', 10, true), ...decodeSources],
    prefill: [],
  });
});

test('nothing is added where the blocks end before the state, or the instance has both on its device', () => {
  const short = [source('b', 0, 5)];
  expect(placed({ decodeSources: short }, { holders: ['b'] }).decode).toEqual(short);
  expect(placed({ decodeSources: [] }, { holders: ['b'] }).decode).toEqual([]);
  const whole = [source('b', 0, 6)];
  expect(placed({ decodeSources: whole }).decode).toEqual(whole);
  expect(placed({ decodeSources: whole }, { holders: ['b', 'd1'] }, { d1: 6, b: 6 }).decode).toEqual(whole);
  expect(placed({ decodeSources: whole }, { holders: ['b'] }, { d1: 5, b: 6 }).decode).toEqual([
    stateOf('b', 6),
    ...whole,
  ]);
});
