/**
 * Cuts a program into memory shards, each with a memory of its own: 32 bits address 4 GiB, and a model may be larger.
 *
 *   memory 0:  embed, layers 0 to 11 ─┐        ┌─► samples, logits, sample
 *   memory 1:                         └─► 12 … 31
 *
 * A memory shard holds consecutive layers. The first also holds the operations before and after all layers: tokens are sampled where
 * they are embedded, and a table that serves as embedding and output weight is stored once. Cuts are made only where a single buffer
 * is live; its rows are copied from one memory to the next.
 */
import type { LayerRange } from '../kv_layout.ts';
import { inputsOf, kvLayerOf, type Operation, type Program } from '../program.ts';
import type { OpRange } from './step.ts';

/** Part of a program that runs in a memory of its own. */
export interface MemoryShard {
  /** The memory shard's operations; their layers count from `layers.firstLayer`. */
  readonly program: Program;
  readonly layers: LayerRange;
}

/** Consecutive operations of one memory shard. */
interface ShardRun {
  readonly shard: number;
  /** Range of operations of the whole program. */
  readonly ops: OpRange;
  /** Index of the run's first operation among the memory shard's operations. */
  readonly at: number;
  /** Buffers that the run reads and another memory shard holds: name, and index of that shard. */
  readonly carried: readonly { readonly buffer: string; readonly from: number }[];
}

/** A program cut into memory shards, and the runs of operations in which a step executes them. */
export interface MemoryShards {
  readonly shards: readonly MemoryShard[];
  readonly runs: readonly ShardRun[];
  /** Index of the memory shard that holds each buffer when a step begins (`first`) and ends (`last`). */
  readonly owners: ReadonlyMap<string, { readonly first: number; readonly last: number }>;
}

/**
 * Cuts a program into as few memory shards as possible. A unit that exceeds `fits` by itself becomes a memory shard all the same,
 * because units cannot be cut.
 */
export function shardsOf(program: Program, fits: (shard: MemoryShard) => boolean): MemoryShards {
  const numOps = program.operations.length;
  if (fits(wholeOf(program))) return joined(program, [[{ first: 0, end: numOps }]]);
  const [begin, ...units] = unitsOf(program);
  const end = units.pop();
  const held: OpRange[][] = [[...(begin ? [begin] : []), ...(end ? [end] : [])]];
  for (const unit of units) {
    const last = held.at(-1)!;
    const more = merged([...last, unit]);
    if (fits(shardOf(program, more))) held[held.length - 1] = more;
    else held.push([unit]);
  }
  return joined(program, held);
}

/**
 * Returns the ranges of operations that stay together: those before the layers, parts of layers, those after. A cut needs exactly one
 * live buffer besides those that are written before the layers only, which every memory shard gets; and layers that read the KV of
 * another stay with it.
 */
function unitsOf({ operations }: Program): OpRange[] {
  const early = writtenBeforeLayers(operations);
  const shared = sharedKv(operations);
  const after = operations.findIndex(({ kind }) => kind === 'gather_samples');
  const last = after < 0 ? operations.length : after;
  const cuts: number[] = [];
  let live = new Set<string>();
  for (let op = operations.length - 1; op > 0; op--) {
    const operation = operations[op]!;
    const made = madeBy(operation);
    live = new Set([...[...live].filter((buffer) => buffer !== made), ...inputsOf(operation)]);
    const isShared = shared.some(({ first, end }) => first < op && op < end);
    const numLive = [...live].filter((buffer) => !early.has(buffer)).length;
    if (op <= last && numLive === 1 && !isShared) cuts.unshift(op);
  }
  return [0, ...cuts].map((first, i) => ({ first, end: cuts[i] ?? operations.length }));
}

/** Returns the buffers that no operation writes from the first layer on. */
function writtenBeforeLayers(operations: readonly Operation[]): Set<string> {
  const first = operations.findIndex((op) => 'layer' in op);
  const writtenBy = (ops: readonly Operation[]): string[] => ops.flatMap((op) => ('out' in op ? [op.out] : []));
  const later = new Set(writtenBy(operations.slice(first)));
  return new Set(writtenBy(operations.slice(0, first)).filter((buffer) => !later.has(buffer)));
}

/** Returns the ranges of operations from a layer that stores KV to a later one that reads it. */
function sharedKv(operations: readonly Operation[]): OpRange[] {
  return operations.flatMap((op, i) => {
    if (op.kind !== 'attention' || kvLayerOf(op) === op.layer) return [];
    const first = operations.findIndex((one) => 'layer' in one && one.layer === kvLayerOf(op));
    return [{ first, end: i + 1 }];
  });
}

/** Returns the buffer that an operation writes without reading it, or undefined when there is none. */
function madeBy(op: Operation): string | undefined {
  const out = op.kind === 'route' ? op.routes : 'out' in op ? op.out : undefined;
  return out !== undefined && inputsOf(op).includes(out) ? undefined : out;
}

/** Returns the ranges in ascending order, adjacent ones joined. */
function merged(ranges: readonly OpRange[]): OpRange[] {
  const all: OpRange[] = [];
  for (const range of [...ranges].sort((a, b) => a.first - b.first)) {
    const before = all.at(-1);
    if (before?.end === range.first) all[all.length - 1] = { first: before.first, end: range.end };
    else all.push(range);
  }
  return all;
}

/** Returns a memory shard of these operations, with the buffers, weights, KV layers and rope tables that they use. */
function shardOf(program: Program, ranges: readonly OpRange[]): MemoryShard {
  const operations = ranges.flatMap(({ first, end }) => program.operations.slice(first, end));
  const layers = operations.flatMap((op) => ('layer' in op ? [op.layer] : []));
  const firstLayer = layers.length > 0 ? Math.min(...layers) : 0;
  const numLayers = layers.length > 0 ? Math.max(...layers) + 1 - firstLayer : 0;
  const names = new Set(operations.flatMap((op) => Object.values(op).filter((value) => typeof value === 'string')));
  const named = <T>(all: Readonly<Record<string, T>>): Record<string, T> =>
    Object.fromEntries(Object.entries(all).filter(([name]) => names.has(name)));
  return {
    program: {
      operations: operations.map((op) => countedFrom(firstLayer, op)),
      buffers: named(program.buffers),
      weights: named(program.weights),
      kv: program.kv.slice(firstLayer, firstLayer + numLayers),
      ...(program.state ? { state: program.state.slice(firstLayer, firstLayer + numLayers) } : {}),
      rope: named(program.rope),
    },
    layers: { firstLayer, numLayers },
  };
}

/** Returns the operation with its layers counted from `firstLayer`. */
function countedFrom(firstLayer: number, op: Operation): Operation {
  if (!('layer' in op)) return op;
  const kvLayer = op.kind === 'attention' && op.kvLayer !== undefined ? { kvLayer: op.kvLayer - firstLayer } : {};
  return { ...op, layer: op.layer - firstLayer, ...kvLayer };
}

function wholeOf(program: Program): MemoryShard {
  return { program, layers: { firstLayer: 0, numLayers: program.kv.length } };
}

function joined(program: Program, held: readonly (readonly OpRange[])[]): MemoryShards {
  const isWhole = held.length === 1;
  const runs = held
    .flatMap((ranges, shard) => {
      let at = 0;
      return ranges.map((ops) => {
        const run = { shard, ops, at };
        at += ops.end - ops.first;
        return run;
      });
    })
    .sort((a, b) => a.ops.first - b.ops.first);
  const owners = new Map<string, { first: number; last: number }>();
  const carrying = runs.map(({ shard, ops, at }): ShardRun => {
    const carried: { buffer: string; from: number }[] = [];
    for (const op of program.operations.slice(ops.first, ops.end)) {
      for (const buffer of inputsOf(op)) {
        const owner = owners.get(buffer);
        if (owner && owner.last !== shard) carried.push({ buffer, from: owner.last });
        owners.set(buffer, { first: owner?.first ?? shard, last: shard });
      }
      const made = madeBy(op);
      if (made !== undefined) owners.set(made, { first: owners.get(made)?.first ?? shard, last: shard });
    }
    return { shard, ops, at, carried };
  });
  return {
    shards: isWhole ? [wholeOf(program)] : held.map((ranges) => shardOf(program, ranges)),
    runs: carrying,
    owners,
  };
}
