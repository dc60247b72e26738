/**
 * Loads a program onto a GPU, ready for steps: streams weights, allocates buffers and, in the memory left, KV blocks, and makes
 * pipelines and bind groups.
 */
import assert from 'node:assert/strict';
import { MAX_CANDIDATES, type LoadOptions, type WeightSource } from '../device.ts';
import { exp2Table } from '../sampling.ts';
import type { Program, RopeTable } from '../program.ts';
import { samplingOf } from '../program_kinds.ts';
import { numStateSlotsOf } from '../state_slots.ts';
import { attentionTiling, type AttentionTiling } from './attention_tiling.ts';
import { BlockTransfer } from './block_transfer.ts';
import { makeDispatchList } from './dispatch_list.ts';
import { DispatchPlan, rowStride, type Resources, type RopeAngles } from './dispatch_plan.ts';
import { fuse, fusedAway, interleavedWeights } from './fusion.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { WeightLoader, type GpuWeight } from './gpu_weights.ts';
import type { KernelCache } from './kernel.ts';
import type { Capabilities } from './kernel_set.ts';
import { numBlocksFor, refuseStatesThatCannotFit, refuseWhatCannotFit, type Room } from './memory_fit.ts';
import { candidateTiles } from './ops/candidates.ts';
import { sampleStateBytes } from './ops/sample.ts';
import { polled } from './polling.ts';
import { hiddenBackBytes, NUM_AHEAD, rowsBackBytes } from './read_back.ts';
import { routingBytes } from './routing.ts';
import { planExport, StepExporter } from './step_export.ts';
import { StateTransfer } from './state_transfer.ts';
import { MAX_RESULT_WORDS, StepState } from './step_state.ts';
import { WebgpuExecutable } from './webgpu_executable.ts';

/** Bytes per block of a layer that stores no KV: its buffer is bound all the same, and a binding cannot be empty. */
const MIN_BINDING_BYTES = 16;

/** The device that a program is loaded onto. */
export interface LoadDevice {
  readonly device: GPUDevice;
  readonly kernels: KernelCache;
  readonly capabilities: Capabilities;
  readonly room: Room;
  /** Says why the device is lost, once it is. */
  readonly lost: () => string | undefined;
}

/**
 * Loads a program onto a device: its weights, its buffers, KV blocks in the memory left, and the dispatches of a step.
 *
 * @throws DeviceError when the program does not fit; the caller destroys what `memory` has allocated by then.
 */
export async function loadProgram(
  on: LoadDevice,
  program: Program,
  source: WeightSource,
  options: LoadOptions,
  memory: GpuMemory,
): Promise<WebgpuExecutable> {
  const { device, kernels, capabilities, room } = on;
  const operations = fuse(program);
  const tiling = attentionTiling(program, options, capabilities.isSoftware);
  const weights = await loadWeights(on, program, source, options, memory, interleavedWeights(operations));

  const { maxRows, maxSamples } = options;
  const buffers = await allocateActivations(program, options, memory, fusedAway(operations));
  const state = new StepState(options, tiling, samplingOf(program)?.vocab ?? 0);
  const rope = await loadRope(device, program, memory);
  const shared = await allocateStep(device, program, options, memory, state.words.byteLength, tiling);

  const { states, stateSlots } = await allocateStates(device, options, memory, room);
  const candidates = program.operations.find((op) => op.kind === 'candidates');
  const rowsBack = candidates ? rowsBackBytes(candidates.vocab, maxSamples) : 0;
  const { kv: layout } = options;
  const { blockBytes } = layout;
  const layerBytes = layout.layers.map(({ bytes }) => bytes);
  const exports = planExport(layout, Math.ceil(maxRows / layout.blockSize), 1 + NUM_AHEAD);
  const otherBytes = rowsBack + hiddenBackBytes(program, maxRows) + exports.bytes;
  const numBlocks = blockBytes > 0 ? await numBlocksFor(options.numBlocks, memory, layout, otherBytes, room) : 0;
  const kv = await allocateKv(layerBytes, numBlocks, memory);
  const resources = { device, kernels, capabilities, weights, buffers, kv, states, rope, ...shared };
  const list = await makeDispatchList(new DispatchPlan(program, options, resources, tiling), operations, memory);
  const transfer =
    blockBytes > 0 ? await BlockTransfer.create(device, memory, kernels, kv, layout, numBlocks) : undefined;
  const exporter =
    exports.numBlocks > 0 ? await StepExporter.create(device, memory, kernels, kv, exports, 1 + NUM_AHEAD) : undefined;
  return WebgpuExecutable.create({
    ...{ device, program, options, numBlocks, blockBytes, memory, list, state, buffers, transfer, exporter },
    stateSlots,
    step: shared.step,
    results: shared.results,
    samplerPages: shared.samplerPages,
    lost: on.lost,
  });
}

/** Allocates all buffers but the `unwritten` ones. @returns them by name. */
async function allocateActivations(
  program: Program,
  { maxRows, maxSamples }: LoadOptions,
  memory: GpuMemory,
  unwritten: ReadonlySet<string>,
): Promise<Map<string, GPUBuffer>> {
  const buffers = new Map<string, GPUBuffer>();
  for (const [name, { rows, perRow = 1, width }] of Object.entries(program.buffers)) {
    if (unwritten.has(name)) continue;
    const numRows = perRow * (rows === 'samples' ? maxSamples : maxRows);
    buffers.set(name, await memory.storage('activations', name, numRows * rowStride(width) * 4));
  }
  return buffers;
}

/** Allocates the KV of all blocks, a buffer a layer. */
async function allocateKv(layerBytes: readonly number[], numBlocks: number, memory: GpuMemory): Promise<GPUBuffer[]> {
  const kv: GPUBuffer[] = [];
  for (const [layer, bytes] of layerBytes.entries()) {
    kv.push(await memory.storage('KV blocks', `KV of layer ${layer}`, Math.max(bytes, MIN_BINDING_BYTES) * numBlocks));
  }
  return kv;
}

/** Allocates what the dispatches of a step share, apart from activations and KV. `stepBytes`: of the data that varies from step to step. */
async function allocateStep(
  device: GPUDevice,
  program: Program,
  { maxRows, maxSamples, samplerPages = 0 }: LoadOptions,
  memory: GpuMemory,
  stepBytes: number,
  tiling: AttentionTiling | undefined,
): Promise<Omit<Resources, 'device' | 'kernels' | 'capabilities' | 'weights' | 'buffers' | 'kv' | 'states' | 'rope'>> {
  const candidates = program.operations.find((op) => op.kind === 'candidates');
  const tiles = candidates ? candidateTiles(candidates.vocab) : 0;
  const vocab = samplingOf(program)?.vocab ?? 0;
  const hasSamples = program.operations.some(({ kind }) => kind === 'sample');
  const partials = tiling?.maxPartials ?? 0;
  const storage = (label: string, bytes: number): Promise<GPUBuffer> => memory.storage('step', label, bytes);
  const shared = {
    step: await storage('step', stepBytes),
    parts: await storage('attention partials', partials * (tiling?.partialValues ?? 0) * 4),
    partStats: await storage('attention partial sums', partials * (tiling?.partialHeads ?? 0) * 8),
    lists: await storage('candidate lists', maxSamples * tiles * MAX_CANDIDATES * 8),
    stats: await storage('candidate sums', maxSamples * tiles * 8),
    results: await storage('results', maxSamples * MAX_RESULT_WORDS * 4),
    exp2Table: await storage('powers of two', exp2Table.byteLength),
    samplerPages: await storage('sampler pages', Math.max(16, samplerPages * vocab * 4)),
    slots: await storage('sampled tokens', maxSamples * 4),
    sampleState: await storage('sampling', hasSamples ? sampleStateBytes(vocab, maxSamples) : 16),
    routing: await storage('routing', routingBytes(program, maxRows)),
    none: await storage('none', 16),
  };
  device.queue.writeBuffer(shared.exp2Table, 0, exp2Table);
  return shared;
}

/** Allocates the slots for recurrent states, a buffer a layer; none for a program without recurrent layers. */
async function allocateStates(
  device: GPUDevice,
  options: LoadOptions,
  memory: GpuMemory,
  room: Room,
): Promise<{ readonly states: readonly GPUBuffer[]; readonly stateSlots: StateTransfer | undefined }> {
  const { state } = options;
  const numSlots = numStateSlotsOf(options);
  if (!state || numSlots === 0) return { states: [], stateSlots: undefined };
  refuseStatesThatCannotFit(state, numSlots, memory, room);
  const states: GPUBuffer[] = [];
  for (const [layer, { bytes }] of state.layers.entries()) {
    const size = Math.max(bytes * numSlots, MIN_BINDING_BYTES);
    states.push(await memory.storage('state slots', `states of layer ${layer}`, size));
  }
  return { states, stateSlots: await StateTransfer.create(device, memory, states, state) };
}

/** Loads the tables of angles. @returns them by name. */
async function loadRope(device: GPUDevice, program: Program, memory: GpuMemory): Promise<Map<string, RopeAngles>> {
  const rope = new Map<string, RopeAngles>();
  for (const [name, table] of Object.entries(program.rope)) {
    const { dim, pairDistance = dim / 2, queryFactors } = table;
    const values = interleave(table);
    const angles = await memory.storage('step', `rope angles ${name}`, values.byteLength);
    device.queue.writeBuffer(angles, 0, values);
    rope.set(name, { dim, pairDistance, hasQueryFactors: queryFactors !== undefined, angles });
  }
  return rope;
}

async function loadWeights(
  { device, kernels, room }: LoadDevice,
  program: Program,
  source: WeightSource,
  { weightFormat, onProgress }: LoadOptions,
  memory: GpuMemory,
  interleaved: ReadonlySet<string>,
): Promise<Map<string, GpuWeight>> {
  const loader = new WeightLoader(device, memory, kernels);
  const entries = Object.entries(program.weights);
  refuseWhatCannotFit(entries, weightFormat, room);
  const totalBytes = entries.reduce((sum, [, { outputs, inner }]) => sum + outputs * inner * 4, 0);
  let doneBytes = 0;
  const weights = new Map<string, GpuWeight>();
  for (const [name, spec] of entries) {
    const weight = await loader.load(name, spec, weightFormat, interleaved.has(name), source, (bytes) => {
      doneBytes += bytes;
      onProgress?.(doneBytes, totalBytes);
    });
    weights.set(name, weight);
  }
  await polled(device.queue.onSubmittedWorkDone());
  return weights;
}

/** Interleaves [cosine, sine], with the query factor of a position, if there is one, behind its pairs. */
function interleave({ dim, cos, sin, queryFactors }: RopeTable): Float32Array<ArrayBuffer> {
  assert(cos.length === sin.length, 'a sine for every cosine');
  const half = dim / 2;
  const stride = half + (queryFactors ? 1 : 0);
  const numPositions = cos.length / half;
  const angles = new Float32Array(2 * stride * numPositions);
  for (let position = 0; position < numPositions; position++) {
    const at = 2 * stride * position;
    for (let i = 0; i < half; i++) {
      angles[at + 2 * i] = cos[position * half + i]!;
      angles[at + 2 * i + 1] = sin[position * half + i]!;
    }
    if (queryFactors) angles[at + 2 * half] = queryFactors[position]!;
  }
  return angles;
}
