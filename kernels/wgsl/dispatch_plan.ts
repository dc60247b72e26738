/** A program as a list of dispatches: buffers have rows of whole vectors, pipelines and bind groups are made once. */
import assert from 'node:assert/strict';
import {
  DeviceError,
  type AttentionShape,
  type BufferSpec,
  type LoadOptions,
  type Operation,
  type Program,
} from '../device.ts';
import { paddedInner, scalesPerRow } from '../weight_format.ts';
import { attentionMerge } from './attention_merge.ts';
import { SPLIT_TOKENS, type AttentionTiling } from './attention_tiling.ts';
import { CANDIDATE_TILE, candidates, candidatesMerge, MAX_CANDIDATE_TILES } from './candidates.ts';
import { rowStride, type Dispatch, type Grid, type Resources } from './dispatch.ts';
import { embed } from './embed.ts';
import type { Step } from './fusion.ts';
import { gatherSamples } from './gather_samples.ts';
import type { GpuWeight, WeightSlice } from './gpu_weights.ts';
import { packParams, PARAMS_STRIDE, type KernelSpec, type Specialisation } from './kernel.ts';
import { formatConstant } from './kernel_set.ts';
import { linearDispatch } from './linear_dispatch.ts';
import { pagedAttention } from './paged_attention.ts';
import { polled } from './polling.ts';
import { rmsNorm } from './rms_norm.ts';
import { ropeStore } from './rope_store.ts';
import { siluMul } from './silu_mul.ts';
import { Header, type StepCounts } from './step_state.ts';

export class DispatchPlan {
  readonly #program: Program;
  readonly #options: LoadOptions;
  readonly #resources: Resources;
  readonly #tiling: AttentionTiling | undefined;
  readonly #dispatches: Promise<Dispatch>[] = [];
  readonly #params: DataView<ArrayBuffer>;
  #numParams = 0;

  private constructor(
    program: Program,
    options: LoadOptions,
    resources: Resources,
    tiling: AttentionTiling | undefined,
  ) {
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
    tiling: AttentionTiling | undefined,
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
    work: Dispatch['work'],
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
    const count = x.spec.rows;
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
    const { none, step } = this.#resources;
    const [x, out] = [this.#buffer(op.x), this.#buffer(gated ? gated.out : op.out)];
    const normX = norm && this.#buffer(norm.x);
    const weight = this.#weight(op.weight);
    const { inner, outputs } = weight;
    assert(paddedInner(inner) <= x.stride, `linear ${op.weight}: inputs differ`);
    assert((gated ? outputs / 2 : outputs) <= out.spec.width, `linear ${op.weight}: outputs differ`);
    for (const slice of weight.slices) {
      this.#dispatches.push(
        linearDispatch(this.#resources, {
          ...{ weight, slice, isGated: gated !== undefined },
          count: x.spec.rows,
          params: {
            x_stride: x.stride,
            out_stride: out.stride,
            has_bias: op.bias === undefined ? 0 : 1,
            is_accumulating: op.accumulate ? 1 : 0,
            inverse_norm_width: 1 / (normX?.spec.width ?? 1),
            epsilon: norm?.epsilon ?? 0,
          },
          bindings: {
            x: x.buffer,
            scales: slice.scales ?? none,
            bias: op.bias === undefined ? none : this.#vector(op.bias),
            norm: norm ? this.#vector(norm.weight) : none,
            step,
            out: out.buffer,
          },
          normX: normX?.buffer,
          pack: (spec, params) => this.#pack(spec, params),
        }),
      );
    }
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
    assert(this.#tiling, 'attention comes with its tiling');
    const { tileRows, tileTokens } = this.#tiling;
    const window = op.window ?? 0;
    const constants = {
      BLOCK_SIZE: blockSize,
      HEAD_DIM: headDim,
      GROUP: group,
      TOKENS: tileTokens,
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
      count: 'decodeItems' | 'prefillItems',
      pairs: 'decodePairs' | 'prefillPairs',
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
          window,
        },
        bindings,
        (counts) => [counts[count], kvHeads, 1],
        // An item's rows share what they read.
        (_counts, attended) => ({
          bytes: (attended[pairs] / rows) * tokenBytes,
          flops: 4 * attended[pairs] * heads * headDim,
        }),
      );
    };
    add('attention (prefill)', tileRows, Header.prefillItemsAt, 'prefillItems', 'prefillPairs');
    add('attention (decode)', 1, Header.decodeItemsAt, 'decodeItems', 'decodePairs');
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
