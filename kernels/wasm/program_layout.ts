/** A program laid out for the wasm device: where each weight, buffer and step input lies, and the operations that point there. */
import assert from 'node:assert/strict';
import { DeviceError, MAX_CANDIDATES, MAX_MASKS, type LoadOptions } from '../device.ts';
import { exp2Table } from '../sampling.ts';
import { planesOf } from '../kv_planes.ts';
import { numStateSlotsOf, statePlaneAt } from '../state_slots.ts';
import type { BufferSpec, Operation, Program } from '../program.ts';
import { samplingOf, widestMixture } from '../program_kinds.ts';
import { MemoryPlan } from './memory_plan.ts';
import { bind, scratchBytesOf, writeStructs } from './operations.ts';
import { samplerSlot } from './ops/sample.ts';
import { attentionTile, spanPartialsOf, type SpanPartials } from './attention_spans.ts';
import { SAVE_BYTES, stateSegment } from './state_segments.ts';
import type { Operands, StepRegions } from './ops/operation.ts';
import type { BoundOperation } from './bound_operation.ts';
import { stagingBytesOf } from './staging.ts';
import { stagingsFor } from './packing.ts';
import { formatCode, paddedWidth, weightBytes } from './panels.ts';
import { countCells } from './shared_step.ts';
import { FEW_ROWS, type StepOrder, type StepPlan } from './step_order.ts';
import { planSteps } from './step_plan.ts';

/** Layout of one memory shard's program: byte offsets of its regions, and its bound operations. */
export interface ProgramLayout {
  readonly plan: MemoryPlan;
  readonly weights: ReadonlyMap<string, number>;
  readonly buffers: ReadonlyMap<string, { readonly at: number; readonly spec: BufferSpec }>;
  readonly regions: StepRegions;
  readonly kv: number;
  readonly blockBytes: number;
  /** Offset of state slot 0. */
  readonly state: number;
  readonly rope: ReadonlyMap<string, ReturnType<Operands['rope']>>;
  /** [threads][scratchBytes] */
  readonly scratch: number;
  readonly scratchBytes: number;
  readonly spanPartials: SpanPartials & { readonly at: number };
  readonly staging: number;
  /** Bytes per staging region. */
  readonly stagingBytes: number;
  readonly numStagings: number;
  readonly operations: readonly BoundOperation[];
  readonly steps: StepPlan;
  /** The operations of a step of few rows, bound to the buffers that a thread has to itself (step_plan.ts), by thread. */
  readonly ownOperations: readonly (readonly BoundOperation[])[];
}

/** Number of threads per step, number of threads that pack weights, and most bytes of a memory (undefined: 4 GiB). */
interface LayoutChoice {
  readonly numThreads: number;
  readonly numPacking: number;
  readonly maxMemoryBytes: number | undefined;
}

/**
 * Lays a program out: reserves its regions and binds its operations. @throws DeviceError for shapes that the kernels do not
 * support.
 */
export function layOutProgram(
  program: Program,
  options: LoadOptions,
  { numThreads, numPacking, maxMemoryBytes }: LayoutChoice,
): ProgramLayout {
  if (options.kv.blockSize % 4 !== 0) {
    throw new DeviceError(`--block-size must be a multiple of 4 on the wasm device, not ${options.kv.blockSize}`);
  }
  const plan = new MemoryPlan(maxMemoryBytes);
  const weights = new Map(
    Object.entries(program.weights).map(([name, spec]) => [
      name,
      plan.reserve('weights', weightBytes(spec, options.weightFormat)),
    ]),
  );
  const buffers = new Map(
    Object.entries(program.buffers).map(([name, spec]) => [
      name,
      { spec, at: plan.reserve('activations', numRowsOf(spec, options) * paddedWidth(spec.width) * 4) },
    ]),
  );
  const regions = regionsOf(program, options, plan);
  const { blockBytes } = options.kv;
  const kv = plan.reserve('KV blocks', blockBytes * options.numBlocks.max);
  const state = plan.reserve('state slots', (options.state?.slotBytes ?? 0) * numStateSlotsOf(options));
  const rope = layOutRope(program, (what, count) => plan.reserve(what, count * 4));
  const scratchBytes = scratchBytesOf({ program, options });
  const scratch = plan.reserve('scratch', scratchBytes * numThreads);
  const stagingBytes = stagingBytesOf(Object.values(program.weights));
  const numStagings = stagingsFor(numPacking);
  const staging = plan.reserve('staging', stagingBytes * numStagings);
  const partials = spanPartialsOf(program, options, numThreads);
  const partialsBytes = partials.maxTiles * partials.maxSpans * partials.spanBytes;
  const spanPartials = { ...partials, at: plan.reserve('attention partial results', partialsBytes) };
  const operands = operandsOf(program, options, {
    weights,
    buffers,
    regions,
    kv,
    blockBytes,
    state,
    rope,
    spanPartials,
  });
  const steps = planSteps(program);
  const bound = bindAll(program, plan, operands);
  const own = (thread: number): readonly BoundOperation[] =>
    // Thread 0 has the buffers of the program themselves.
    thread === 0 ? bound : bindOwn(program, options, plan, operands, { bound, own: steps.few.own });
  return {
    plan,
    weights,
    buffers,
    regions,
    kv,
    blockBytes,
    state,
    rope,
    scratch,
    scratchBytes,
    staging,
    stagingBytes,
    numStagings,
    spanPartials,
    steps,
    operations: bound,
    ownOperations: Array.from({ length: numThreads }, (_, thread) => own(thread)),
  };
}

function numRowsOf({ rows, perRow = 1 }: BufferSpec, { maxRows, maxSamples }: LoadOptions): number {
  return perRow * (rows === 'samples' ? maxSamples : maxRows);
}

function bindAll(program: Program, plan: MemoryPlan, operands: Operands): BoundOperation[] {
  return program.operations.map((op, index) => bindAt(op, index, plan, operands));
}

function bindAt(op: Operation, index: number, plan: MemoryPlan, operands: Operands): BoundOperation {
  return bind(op, index, (bytes) => plan.reserve('operations', bytes), operands);
}

/** Binds the operations that use buffers which a thread has to itself to copies of these; all others are those of `bound`. */
function bindOwn(
  program: Program,
  options: LoadOptions,
  plan: MemoryPlan,
  operands: Operands,
  { bound, own }: { readonly bound: readonly BoundOperation[]; readonly own: StepOrder['own'] },
): BoundOperation[] {
  const copies = new Map(
    [...new Set(own.flat())].map((name) => {
      const spec = program.buffers[name]!;
      const rows = Math.min(FEW_ROWS, numRowsOf(spec, options));
      return [name, plan.reserve('activations', rows * paddedWidth(spec.width) * 4)];
    }),
  );
  return program.operations.map((op, index) => {
    const names = own[index]!;
    if (names.length === 0) return bound[index]!;
    const buffer: Operands['buffer'] = (name) => {
      const shared = operands.buffer(name);
      return names.includes(name) ? { ...shared, at: copies.get(name) ?? shared.at } : shared;
    };
    return bindAt(op, index, plan, { ...operands, buffer });
  });
}

/** Reserves the regions that are written before a step or read after it. */
function regionsOf(program: Program, options: LoadOptions, plan: MemoryPlan): StepRegions {
  const mixture = widestMixture(program);
  const words = (what: string, count: number): number => plan.reserve(what, count * 4);
  const vocab = samplingOf(program)?.vocab ?? 0;
  return {
    tokens: words('tokens', options.maxRows),
    positions: words('positions', options.maxRows),
    slots: words('slots', options.maxRows),
    blockTables: words('block tables', options.maxRows * options.maxBlocksPerSequence),
    tiles: plan.reserve('tiles', options.maxRows * attentionTile.bytes),
    sampleRows: words('sample rows', options.maxSamples),
    sampleCounts: words('sample counts', options.maxSamples),
    candidateIds: words('candidate ids', options.maxSamples * MAX_CANDIDATES),
    candidateValues: words('candidate values', options.maxSamples * MAX_CANDIDATES),
    sampleStats: words('sample stats', options.maxSamples * 2),
    samplerSlots: plan.reserve('sampling', options.maxSamples * samplerSlot.bytes),
    sampledTokens: words('sampling', options.maxSamples),
    slotTokens: words('sampling', options.maxSamples),
    samplerPages: words('sampler pages', (options.samplerPages ?? 0) * vocab),
    sampleMasks: words('sampler masks', Math.min(MAX_MASKS, options.maxSamples) * Math.ceil(vocab / 32)),
    exp2Table: words('sampling', exp2Table.length),
    // Each row may be a segment by itself, and its state saved.
    stateSegments: plan.reserve('state segments', options.state ? options.maxRows * stateSegment.bytes : 0),
    stateSaves: plan.reserve('state segments', options.state ? options.maxRows * SAVE_BYTES : 0),
    routing: words('routing', mixture.experts + 1 + options.maxRows * mixture.perToken),
  };
}

function layOutRope(
  { rope }: Program,
  words: (what: string, count: number) => number,
): Map<string, ReturnType<Operands['rope']>> {
  return new Map(
    Object.entries(rope).map(([name, { dim, pairDistance = dim / 2, cos, sin, queryFactors }]) => [
      name,
      {
        rotaryDim: dim,
        pairDistance,
        cos: words('rope cos', cos.length),
        sin: words('rope sin', sin.length),
        queryFactors: queryFactors ? words('rope query factors', queryFactors.length) : 0,
      },
    ]),
  );
}

/**
 * Writes everything but weights that stays the same from step to step: rope tables, the table of powers of two, and the operations'
 * structs.
 */
export function writeConstants(program: Program, layout: ProgramLayout, memory: WebAssembly.Memory): void {
  for (const [name, { cos, sin, queryFactors }] of Object.entries(program.rope)) {
    const at = layout.rope.get(name)!;
    new Float32Array(memory.buffer, at.cos, cos.length).set(cos);
    new Float32Array(memory.buffer, at.sin, sin.length).set(sin);
    if (queryFactors) new Float32Array(memory.buffer, at.queryFactors, queryFactors.length).set(queryFactors);
  }
  new Uint32Array(memory.buffer, layout.regions.exp2Table, exp2Table.length).set(exp2Table);
  const view = new DataView(memory.buffer);
  program.operations.forEach((op, i) => {
    for (const bound of new Set([layout.operations, ...layout.ownOperations].map((all) => all[i]!)))
      writeStructs(view, op, bound);
  });
}

type Addresses = Pick<
  ProgramLayout,
  'weights' | 'buffers' | 'regions' | 'kv' | 'blockBytes' | 'state' | 'rope' | 'spanPartials'
>;

function operandsOf(program: Program, options: LoadOptions, addresses: Addresses): Operands {
  const { weights, buffers, regions, kv, blockBytes, state, rope, spanPartials } = addresses;
  const planesAt = (layer: number): number => kv + (options.kv.layers[layer]?.offset ?? 0);
  return {
    options,
    regions,
    blockBytes,
    spanPartials,
    buffer: (name) => {
      const buffer = buffers.get(name);
      assert(buffer, `the program has no buffer ${name}`);
      const { rows, perRow = 1, width } = buffer.spec;
      return { at: buffer.at, stride: paddedWidth(width) * 4, width, count: countCells[rows], perRow };
    },
    weight: (name) => {
      const [at, spec] = [weights.get(name), program.weights[name]];
      assert(at !== undefined && spec, `the program has no weight ${name}`);
      return { at, spec, format: formatCode(spec, options.weightFormat) };
    },
    experts: (routes) => {
      const made = program.operations.find((op) => op.kind === 'route' && op.routes === routes);
      assert(made?.kind === 'route', `no operation of the program computes the routes ${routes}`);
      return made.experts;
    },
    rope: (name) => {
      const table = rope.get(name);
      assert(table, `the program has no rope table ${name}`);
      return table;
    },
    planesAt,
    state: (layer, plane, values) => ({
      state: state + statePlaneAt(options.state, layer, plane, values).inSlot,
      slotBytes: options.state?.slotBytes ?? 0,
    }),
    planes: (op) => {
      const { k, v } = planesOf(options.kv, op);
      return {
        kv: planesAt(op.layer) + k.offset,
        valueOffset: v.offset - k.offset,
        keyTokenBytes: k.tokenBytes,
        valueTokenBytes: v.tokenBytes,
      };
    },
  };
}
