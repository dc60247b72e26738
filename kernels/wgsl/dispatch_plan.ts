/**
 * A program as a list of dispatches: operations fused where one kernel does two, buffers given rows of whole vectors, pipelines and
 * bind groups made once.
 *
 *   rms_norm + linear   with one row the product normalises on the way in, and the norm's own dispatch is left out
 *   linear + silu_mul   the product's outputs come in pairs (gate, up); the buffer between is never written
 */
import assert from 'node:assert/strict';
import {
  DeviceError,
  type AttentionShape,
  type BufferSpec,
  type KvDtype,
  type LoadOptions,
  type Operation,
  type Program,
} from '../device.ts';
import { paddedInner, scalesPerRow } from '../weight_format.ts';
import { attentionMerge } from './attention_merge.ts';
import { CANDIDATE_TILE, candidates, candidatesMerge, MAX_CANDIDATE_TILES } from './candidates.ts';
import { embed } from './embed.ts';
import { gatherSamples } from './gather_samples.ts';
import type { GpuWeight, WeightSlice } from './gpu_weights.ts';
import { packParams, PARAMS_STRIDE, type KernelCache, type KernelSpec, type Specialisation } from './kernel.ts';
import {
  columnsFor,
  formatConstant,
  linearVariants,
  manyGrid,
  vectorGrid,
  type Capabilities,
  type LinearVariant,
} from './kernel_set.ts';
import { matmul } from './linear.ts';
import { pagedAttention } from './paged_attention.ts';
import { polled } from './polling.ts';
import { rmsNorm } from './rms_norm.ts';
import { ropeStore } from './rope_store.ts';
import { siluMul } from './silu_mul.ts';
import { Header, SPLIT_TOKENS, type AttentionTiling, type StepCounts } from './step_state.ts';

type Grid = readonly [x: number, y: number, z: number];

/** What a step does at one place of the list. */
interface Launch {
  readonly pipeline: GPUComputePipeline;
  readonly bindGroup: GPUBindGroup;
  readonly grid: Grid;
}

/** Work of one launch, for the benchmark: bytes that must be read, multiply-adds times two. */
export interface Work {
  readonly bytes: number;
  readonly flops: number;
}

export interface Dispatch {
  /** Kernel and what it is for. */
  readonly label: string;
  /** Undefined when the step has nothing for it. */
  readonly launch: (counts: StepCounts) => Launch | undefined;
  readonly work: (counts: StepCounts) => Work;
}

export interface Resources {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  readonly capabilities: Capabilities;
  readonly weights: ReadonlyMap<string, GpuWeight>;
  readonly buffers: ReadonlyMap<string, GPUBuffer>;
  /** One a layer. */
  readonly kv: readonly GPUBuffer[];
  readonly angles: GPUBuffer;
  readonly step: GPUBuffer;
  readonly parts: GPUBuffer;
  readonly partStats: GPUBuffer;
  readonly lists: GPUBuffer;
  readonly stats: GPUBuffer;
  readonly results: GPUBuffer;
  /** Bound where a kernel does not look: read-only, and one to write. */
  readonly none: GPUBuffer;
  readonly params: GPUBuffer;
}

/** Values from one row to the next: whole groups, so that products read no tails. The padding stays zero. */
export function rowStride(width: number): number {
  return paddedInner(width);
}

/** Operations as they are dispatched. */
type Step =
  | { readonly kind: 'single'; readonly op: Exclude<Operation, { kind: 'linear' | 'rms_norm' }> }
  | { readonly kind: 'norm'; readonly op: Extract<Operation, { kind: 'rms_norm' }>; readonly isFused: boolean }
  | {
      readonly kind: 'linear';
      readonly op: Extract<Operation, { kind: 'linear' }>;
      readonly norm: Extract<Operation, { kind: 'rms_norm' }> | undefined;
      readonly gated: Extract<Operation, { kind: 'silu_mul' }> | undefined;
    };

/** Finds what one kernel can do together. */
export function fuse({ operations, weights }: Program): Step[] {
  const steps: Step[] = [];
  const numReaders = (buffer: string): number => operations.filter((op) => reads(op).includes(buffer)).length;
  const numWriters = (buffer: string): number =>
    operations.filter((op) => op.kind === 'rms_norm' && op.out === buffer).length;
  for (let i = 0; i < operations.length; i++) {
    const op = operations[i]!;
    const [before, after] = [operations[i - 1], operations[i + 1]];
    if (op.kind === 'rms_norm') {
      const isFused =
        after?.kind === 'linear' && after.x === op.out && numReaders(op.out) === numWriters(op.out) && op.x !== op.out;
      steps.push({ kind: 'norm', op, isFused });
    } else if (op.kind === 'linear') {
      const norm = steps.at(-1);
      const parts = weights[op.weight]?.parts ?? [];
      const isPair = parts.length === 2 && parts[0]?.outputs === parts[1]?.outputs;
      const gated =
        after?.kind === 'silu_mul' &&
        after.gateUp === op.out &&
        isPair &&
        !op.accumulate &&
        2 * after.inner === weights[op.weight]?.outputs &&
        numReaders(op.out) === operations.filter((other) => other.kind === 'silu_mul' && other.gateUp === op.out).length
          ? after
          : undefined;
      steps.push({
        kind: 'linear',
        op,
        norm: before?.kind === 'rms_norm' && norm?.kind === 'norm' && norm.isFused ? norm.op : undefined,
        gated,
      });
      if (gated) i++;
    } else {
      steps.push({ kind: 'single', op });
    }
  }
  return steps;
}

function reads(op: Operation): string[] {
  switch (op.kind) {
    case 'embed':
      return [];
    case 'rms_norm':
    case 'gather_samples':
      return [op.x];
    case 'linear':
      return op.accumulate ? [op.x, op.out] : [op.x];
    case 'rope_store':
    case 'attention':
      return [op.qkv];
    case 'silu_mul':
      return [op.gateUp];
    case 'candidates':
      return [op.logits];
  }
}

/** Buffers that fusing leaves unwritten. */
export function fusedAway(steps: readonly Step[]): Set<string> {
  return new Set(steps.flatMap((step) => (step.kind === 'linear' && step.gated ? [step.op.out] : [])));
}

/** Weights whose outputs lie in pairs. */
export function interleavedWeights(steps: readonly Step[]): Set<string> {
  return new Set(steps.flatMap((step) => (step.kind === 'linear' && step.gated ? [step.op.weight] : [])));
}

const QUERIES_PER_ITEM = 32;
/** Workgroups that fill a large GPU (H200: 132 multiprocessors times four), and this machine's cores. */
const FULL_WORKGROUPS = 528;
const SOFTWARE_WORKGROUPS = 8;
const K_TILE_BYTES = 8_448;

/** @throws DeviceError for shapes that the kernels do not have. */
export function attentionTiling(
  shape: AttentionShape | undefined,
  window: number,
  isSoftware: boolean,
): AttentionTiling {
  if (!shape) return { tileRows: 1, splitBelowItems: 0, partialBytes: 0, window };
  if (shape.headDim % 4 !== 0) {
    throw new DeviceError(`the webgpu device needs head_dim to be a multiple of 4, this model has ${shape.headDim}`);
  }
  const group = shape.heads / shape.kvHeads;
  return {
    tileRows: Math.max(1, Math.floor(QUERIES_PER_ITEM / group)),
    splitBelowItems: Math.ceil((isSoftware ? SOFTWARE_WORKGROUPS : FULL_WORKGROUPS) / shape.kvHeads),
    partialBytes: shape.heads * (shape.headDim + 2) * 4,
    window,
  };
}

/** Tokens of a K tile: as many as leave workgroup memory for the rest, a divisor of a split. */
function tileTokens(headDim: number, kvDtype: KvDtype): number {
  const perToken = headDim * (kvDtype === 'f16' ? 2 : 4) + 4;
  return [32, 16, 8].find((tokens) => tokens * perToken <= K_TILE_BYTES) ?? 4;
}

export class DispatchPlan {
  readonly #program: Program;
  readonly #options: LoadOptions;
  readonly #resources: Resources;
  readonly #tiling: AttentionTiling;
  readonly #dispatches: Promise<Dispatch>[] = [];
  readonly #params: DataView<ArrayBuffer>;
  #numParams = 0;

  private constructor(program: Program, options: LoadOptions, resources: Resources, tiling: AttentionTiling) {
    this.#program = program;
    this.#options = options;
    this.#resources = resources;
    this.#tiling = tiling;
    this.#params = new DataView(new ArrayBuffer(resources.params.size));
  }

  /** Uniforms that the steps need at most. */
  static numParams(steps: readonly Step[], weights: ReadonlyMap<string, GpuWeight>): number {
    const numSlices = (name: string): number => weights.get(name)?.slices.length ?? 1;
    return steps.reduce((sum, step) => {
      if (step.kind === 'linear') return sum + numSlices(step.op.weight);
      if (step.kind === 'single' && step.op.kind === 'embed') return sum + numSlices(step.op.table);
      return sum + 3;
    }, 0);
  }

  /** Compiles and binds everything. @throws DeviceError for what the kernels do not have. */
  static async make(
    program: Program,
    steps: readonly Step[],
    options: LoadOptions,
    resources: Resources,
    tiling: AttentionTiling,
  ): Promise<Dispatch[]> {
    const plan = new DispatchPlan(program, options, resources, tiling);
    for (const step of steps) plan.#add(step);
    const dispatches = await polled(Promise.all(plan.#dispatches));
    resources.device.queue.writeBuffer(resources.params, 0, plan.#params.buffer);
    return dispatches;
  }

  #add(step: Step): void {
    if (step.kind === 'linear') {
      this.#addLinear(step);
      return;
    }
    if (step.kind === 'norm') {
      this.#addNorm(step);
      return;
    }
    const { op } = step;
    switch (op.kind) {
      case 'embed':
        for (const slice of this.#weight(op.table).slices) this.#addEmbed(op.out, this.#weight(op.table), slice);
        return;
      case 'rope_store':
        this.#addRope(op);
        return;
      case 'attention':
        this.#addAttention(op);
        return;
      case 'silu_mul':
        this.#addSilu(op);
        return;
      case 'gather_samples':
        this.#addGather(op);
        return;
      case 'candidates':
        this.#addCandidates(op);
        return;
    }
  }

  #buffer(name: string): { readonly buffer: GPUBuffer; readonly spec: BufferSpec; readonly stride: number } {
    const [buffer, spec] = [this.#resources.buffers.get(name), this.#program.buffers[name]];
    assert(buffer && spec, `the program has no buffer ${name}`);
    return { buffer, spec, stride: rowStride(spec.width) };
  }

  #weight(name: string): GpuWeight {
    const weight = this.#resources.weights.get(name);
    assert(weight, `the program has no weight ${name}`);
    return weight;
  }

  #vector(name: string): GPUBuffer {
    const weight = this.#weight(name);
    assert(weight.inner === 1, `${name} is no vector`);
    return weight.slices[0]!.data;
  }

  /** The next uniform, filled; its offset. */
  #pack(spec: KernelSpec, values: Readonly<Record<string, number>>): number {
    const offset = this.#numParams++ * PARAMS_STRIDE;
    assert(offset + PARAMS_STRIDE <= this.#params.byteLength, 'more uniforms than were counted');
    packParams(spec, values, this.#params, offset);
    return offset;
  }

  #push(
    label: string,
    spec: KernelSpec,
    specialisation: Specialisation,
    params: Readonly<Record<string, number>>,
    bindings: Readonly<Record<string, GPUBuffer>>,
    grid: (counts: StepCounts) => Grid,
    work: (counts: StepCounts) => Work,
  ): void {
    const { kernels } = this.#resources;
    const bindGroup = kernels.bind(spec, this.#resources.params, this.#pack(spec, params), bindings);
    this.#dispatches.push(
      kernels.pipeline(spec, specialisation).then((pipeline) => ({
        label,
        work,
        launch: (counts) => {
          const size = grid(counts);
          return size[0] * size[1] * size[2] === 0 ? undefined : { pipeline, bindGroup, grid: size };
        },
      })),
    );
  }

  #addEmbed(out: string, weight: GpuWeight, slice: WeightSlice): void {
    const { buffer, stride } = this.#buffer(out);
    const { format, inner } = weight;
    this.#push(
      'embed',
      embed,
      { constants: { FORMAT: formatConstant(format) } },
      {
        first_output: slice.firstOutput,
        outputs: slice.outputs,
        quads: paddedInner(inner) / 4,
        scales_per_output: scalesPerRow(format, inner),
        out_stride: stride,
      },
      { weight: slice.data, scales: slice.scales ?? this.#resources.none, step: this.#resources.step, out: buffer },
      ({ rows }) => [rows, 1, 1],
      ({ rows }) => ({ bytes: rows * stride * 4, flops: 0 }),
    );
  }

  #addNorm({ op, isFused }: Extract<Step, { kind: 'norm' }>): void {
    const [x, out] = [this.#buffer(op.x), this.#buffer(op.out)];
    const count = countOf(x.spec);
    this.#push(
      'rms_norm',
      rmsNorm,
      {},
      { inverse_hidden: 1 / x.spec.width, stride: x.stride, epsilon: op.epsilon },
      { x: x.buffer, weight: this.#vector(op.weight), out: out.buffer },
      (counts) => [isFused && counts[count] === 1 ? 0 : counts[count], 1, 1],
      (counts) => ({ bytes: counts[count] * x.stride * 8, flops: 0 }),
    );
  }

  #addLinear({ op, norm, gated }: Extract<Step, { kind: 'linear' }>): void {
    const { device, none, step } = this.#resources;
    const weight = this.#weight(op.weight);
    const x = this.#buffer(op.x);
    const out = this.#buffer(gated ? gated.out : op.out);
    const { format, inner, outputs } = weight;
    assert(paddedInner(inner) <= x.stride, `linear ${op.weight}: inputs differ`);
    assert((gated ? outputs / 2 : outputs) <= out.spec.width, `linear ${op.weight}: outputs differ`);
    for (const slice of weight.slices) {
      const use = { format, isGated: gated !== undefined, outputs: slice.outputs };
      const variants = linearVariants(this.#resources.capabilities, use, !!norm);
      const numGroups = Math.ceil(slice.outputs / variants.outputsPerWorkgroup);
      const gridY = Math.min(numGroups, device.limits.maxComputeWorkgroupsPerDimension);
      const normX = norm && this.#buffer(norm.x);
      const params = {
        outputs: slice.outputs,
        first_output: slice.firstOutput,
        quads: paddedInner(inner) / 4,
        scales_per_output: scalesPerRow(format, inner),
        x_stride: x.stride,
        out_stride: out.stride,
        has_bias: op.bias === undefined ? 0 : 1,
        is_accumulating: op.accumulate ? 1 : 0,
        count_at: x.spec.rows === 'rows' ? Header.rows : Header.samples,
        grid_y: gridY,
        half_outputs: outputs / 2,
        inverse_norm_width: 1 / (normX?.spec.width ?? 1),
        epsilon: norm?.epsilon ?? 0,
      };
      const bindings = {
        x: x.buffer,
        weight: slice.data,
        scales: slice.scales ?? none,
        bias: op.bias === undefined ? none : this.#vector(op.bias),
        norm: norm ? this.#vector(norm.weight) : none,
        step,
        out: out.buffer,
      };
      const offset = this.#pack(variants.many.spec, params);
      const label = `${variants.many.spec === matmul ? 'linear' : 'linear (matrix)'} ${outputs}×${inner} ${format}${gated ? ' gated' : ''}${norm ? ' after norm' : ''}`;
      this.#dispatches.push(
        this.#linear(label, variants, offset, bindings, norm && normX ? { ...bindings, x: normX.buffer } : undefined, {
          count: countOf(x.spec),
          outputs: slice.outputs,
          numGroups,
          gridY,
          bytes: slice.data.size + (slice.scales?.size ?? 0),
          flops: 2 * slice.outputs * inner,
        }),
      );
    }
  }

  async #linear(
    label: string,
    { byColumns, normed, many }: ReturnType<typeof linearVariants>,
    paramsOffset: number,
    bindings: Readonly<Record<string, GPUBuffer>>,
    normedBindings: Readonly<Record<string, GPUBuffer>> | undefined,
    shape: {
      count: 'rows' | 'samples';
      outputs: number;
      numGroups: number;
      gridY: number;
      bytes: number;
      flops: number;
    },
  ): Promise<Dispatch> {
    const { kernels, params, capabilities } = this.#resources;
    const { count, outputs, numGroups, gridY, bytes, flops } = shape;
    const pipelineOf = (variant: LinearVariant): Promise<GPUComputePipeline> =>
      kernels.pipeline(variant.spec, variant.specialisation);
    // The kernels share one contract, but a layout is per kernel: bind groups for those with few rows and those with many.
    const vectorSpec = byColumns[0]![1].spec;
    const vectorGroup = kernels.bind(vectorSpec, params, paramsOffset, bindings);
    const manyGroup = kernels.bind(many.spec, params, paramsOffset, bindings);
    const normedGroup = normedBindings && kernels.bind(vectorSpec, params, paramsOffset, normedBindings);
    const [columns, manyPipeline, normedPipeline] = await Promise.all([
      Promise.all(byColumns.map(async ([number, variant]) => [number, await pipelineOf(variant)] as const)),
      pipelineOf(many),
      normed && pipelineOf(normed),
    ]);
    const pipelines = new Map(columns);
    return {
      label,
      work: (counts) => ({ bytes, flops: flops * counts[count] }),
      launch: (counts) => {
        const numRows = counts[count];
        if (numRows === 0) return undefined;
        if (numRows === 1 && normedPipeline && normedGroup) {
          return { pipeline: normedPipeline, grid: vectorGrid(1, 1, numGroups, gridY), bindGroup: normedGroup };
        }
        const perGroup = columnsFor(numRows, capabilities.isSoftware);
        if (perGroup === undefined) {
          return { pipeline: manyPipeline, grid: manyGrid(numRows, outputs), bindGroup: manyGroup };
        }
        const pipeline = pipelines.get(perGroup)!;
        return { pipeline, grid: vectorGrid(numRows, perGroup, numGroups, gridY), bindGroup: vectorGroup };
      },
    };
  }

  #shape(kind: string): AttentionShape {
    const shape = this.#program.attention;
    assert(shape, `${kind} needs the program's attention shape`);
    return shape;
  }

  #addRope(op: Extract<Operation, { kind: 'rope_store' }>): void {
    const { heads, kvHeads, headDim } = this.#shape(op.kind);
    const { angles, step, kv } = this.#resources;
    const qkv = this.#buffer(op.qkv);
    this.#push(
      'rope_store',
      ropeStore,
      {
        constants: {
          BLOCK_SIZE: this.#options.blockSize,
          HEAD_DIM: headDim,
          KV_F16: this.#options.kvDtype === 'f16' ? 1 : 0,
        },
      },
      { heads, kv_heads: kvHeads, stride: qkv.stride },
      { angles, step, qkv: qkv.buffer, kv: kv[op.layer]! },
      ({ rows }) => [rows, heads + 2 * kvHeads, 1],
      ({ rows }) => ({ bytes: rows * qkv.stride * 8, flops: 0 }),
    );
  }

  #addAttention(op: Extract<Operation, { kind: 'attention' }>): void {
    const { heads, kvHeads, headDim } = this.#shape(op.kind);
    const { step, kv, parts, partStats } = this.#resources;
    const { blockSize, kvDtype } = this.#options;
    const [qkv, out] = [this.#buffer(op.qkv), this.#buffer(op.out)];
    const group = heads / kvHeads;
    const { tileRows } = this.#tiling;
    const window = op.window ?? 0;
    const constants = {
      BLOCK_SIZE: blockSize,
      HEAD_DIM: headDim,
      GROUP: group,
      TOKENS: tileTokens(headDim, kvDtype),
      SPLIT: SPLIT_TOKENS,
      KV_F16: kvDtype === 'f16' ? 1 : 0,
      HAS_WINDOW: window > 0 ? 1 : 0,
      UNROLLED: this.#resources.capabilities.isSoftware ? 0 : 1,
    };
    const bindings = { qkv: qkv.buffer, kv: kv[op.layer]!, step, out: out.buffer, parts, part_stats: partStats };
    const tokenBytes = 2 * kvHeads * headDim * (kvDtype === 'f16' ? 2 : 4);
    const add = (
      label: string,
      rows: number,
      itemsAt: number,
      count: (counts: StepCounts) => number,
      pairs: (counts: StepCounts) => number,
      tokensRead: (counts: StepCounts) => number,
    ): void => {
      this.#push(
        label,
        pagedAttention,
        { constants: { ...constants, TILE_ROWS: rows, QUERY_BLOCK: rows * group >= 16 ? 4 : 1 } },
        {
          kv_heads: kvHeads,
          qkv_stride: qkv.stride,
          out_stride: out.stride,
          items_at: itemsAt,
          scale: op.scale,
          soft_cap: 0,
          window,
        },
        bindings,
        (counts) => [count(counts), kvHeads, 1],
        (counts) => ({ bytes: tokensRead(counts) * tokenBytes, flops: 4 * pairs(counts) * heads * headDim }),
      );
    };
    add(
      'attention (prefill)',
      tileRows,
      Header.prefillItemsAt,
      ({ prefillItems }) => prefillItems,
      ({ prefillPairs }) => prefillPairs,
      ({ prefillTokensRead }) => prefillTokensRead,
    );
    add(
      'attention (decode)',
      1,
      Header.decodeItemsAt,
      ({ decodeItems }) => decodeItems,
      ({ decodePairs }) => decodePairs,
      ({ decodePairs }) => decodePairs,
    );
    this.#push(
      'attention_merge',
      attentionMerge,
      { constants: { HEAD_DIM: headDim } },
      { heads, out_stride: out.stride },
      { parts, part_stats: partStats, step, out: out.buffer },
      ({ merges }) => [heads, merges, 1],
      () => ({ bytes: 0, flops: 0 }),
    );
  }

  #addSilu(op: Extract<Operation, { kind: 'silu_mul' }>): void {
    const [gateUp, out] = [this.#buffer(op.gateUp), this.#buffer(op.out)];
    this.#push(
      'silu_mul',
      siluMul,
      {},
      { inner: op.inner, gate_up_stride: gateUp.stride, out_stride: out.stride },
      { gate_up: gateUp.buffer, out: out.buffer },
      ({ rows }) => [Math.ceil(op.inner / siluMul.constants.WORKGROUP_SIZE), rows, 1],
      ({ rows }) => ({ bytes: rows * op.inner * 12, flops: 0 }),
    );
  }

  #addGather(op: Extract<Operation, { kind: 'gather_samples' }>): void {
    const [x, out] = [this.#buffer(op.x), this.#buffer(op.out)];
    assert(x.stride === out.stride, `gather ${op.x}: widths differ`);
    this.#push(
      'gather_samples',
      gatherSamples,
      {},
      { stride: x.stride },
      { x: x.buffer, step: this.#resources.step, out: out.buffer },
      ({ samples }) => [samples, 1, 1],
      ({ samples }) => ({ bytes: samples * x.stride * 8, flops: 0 }),
    );
  }

  #addCandidates(op: Extract<Operation, { kind: 'candidates' }>): void {
    const { step, lists, stats, results } = this.#resources;
    const logits = this.#buffer(op.logits);
    const tiles = candidateTiles(op.vocab);
    const params = { vocab: op.vocab, stride: logits.stride, tiles };
    this.#push(
      'candidates',
      candidates,
      {},
      params,
      { logits: logits.buffer, step, lists, stats },
      ({ samples }) => [tiles, samples, 1],
      ({ samples }) => ({ bytes: samples * op.vocab * 4, flops: 0 }),
    );
    this.#push(
      'candidates_merge',
      candidatesMerge,
      {},
      params,
      { lists, stats, logits: logits.buffer, step, results },
      ({ samples }) => [samples, 1, 1],
      () => ({ bytes: 0, flops: 0 }),
    );
  }
}

function countOf(spec: BufferSpec): 'rows' | 'samples' {
  return spec.rows;
}

/** @throws DeviceError for a vocabulary beyond what one workgroup merges. */
export function candidateTiles(vocab: number): number {
  const tiles = Math.ceil(vocab / CANDIDATE_TILE);
  if (tiles > MAX_CANDIDATE_TILES) {
    throw new DeviceError(
      `the webgpu device takes vocabularies up to ${MAX_CANDIDATE_TILES * CANDIDATE_TILE}, not ${vocab}`,
    );
  }
  return tiles;
}
