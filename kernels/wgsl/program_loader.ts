/**
 * Loads a program onto a GPU, ready for steps: streams weights, allocates buffers and, in the memory left, KV blocks, and makes
 * pipelines and bind groups.
 */
import assert from 'node:assert/strict';
import type { LoadOptions, WeightSource } from '../device.ts';
import { exp2Table } from '../sampling.ts';
import type { Program, RopeTable } from '../program.ts';
import { samplingOf } from '../program_kinds.ts';
import { numStateSlotsOf } from '../state_slots.ts';
import { attentionTiling, type AttentionTiling } from './attention_tiling.ts';
import { BlockTransfer } from './block_transfer.ts';
import { makeDispatchList } from './dispatch_list.ts';
import { DispatchPlan, type RopeAngles } from './dispatch_plan.ts';
import { fuse, fusedAway, interleavedWeights } from './fusion.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { WeightLoader, type GpuWeight } from './gpu_weights.ts';
import type { KernelCache } from './kernel.ts';
import type { Capabilities } from './kernel_set.ts';
import { numBlocksFor, refuseStatesThatCannotFit, refuseWhatCannotFit, type Room } from './memory_fit.ts';
import { polled } from './polling.ts';
import { activationSizes, laterBuffers, ropeValues, stepSizes, type StepBufferName } from './program_memory.ts';
import { NUM_AHEAD } from './read_back.ts';
import { StepExporter } from './step_export.ts';
import { StateTransfer } from './state_transfer.ts';
import { StepState } from './step_state.ts';
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

  const buffers = await allocateActivations(program, options, memory, fusedAway(operations));
  const state = new StepState(options, tiling, samplingOf(program)?.vocab ?? 0);
  const rope = await loadRope(device, program, memory);
  const shared = await allocateStep(device, program, options, memory, tiling);

  const { states, stateSlots } = await allocateStates(device, options, memory, room);
  const { kv: layout } = options;
  const { blockBytes } = layout;
  const layerBytes = layout.layers.map(({ bytes }) => bytes);
  const { exports, bytes: laterBytes } = laterBuffers(program, options);
  const numBlocks = blockBytes > 0 ? await numBlocksFor(options.numBlocks, memory, layout, laterBytes, room) : 0;
  const kv = await allocateKv(layerBytes, numBlocks, memory);
  const resources = { device, kernels, capabilities, weights, buffers, kv, states, rope, ...shared };
  const list = await makeDispatchList(new DispatchPlan(program, options, resources, tiling), operations, memory);
  const transfer =
    blockBytes > 0 ? await BlockTransfer.create(device, memory, kernels, kv, layout, numBlocks) : undefined;
  const exporter =
    exports.numBlocks > 0 ? await StepExporter.create(device, memory, kernels, kv, exports, 1 + NUM_AHEAD) : undefined;
  return WebgpuExecutable.create({
    device,
    program,
    options,
    numBlocks,
    blockBytes,
    memory,
    list,
    state,
    buffers,
    transfer,
    exporter,
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
  options: LoadOptions,
  memory: GpuMemory,
  unwritten: ReadonlySet<string>,
): Promise<Map<string, GPUBuffer>> {
  const buffers = new Map<string, GPUBuffer>();
  for (const [name, bytes] of activationSizes(program, options, unwritten))
    buffers.set(name, await memory.storage('activations', name, bytes));
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

/** Allocates what the dispatches of a step share, apart from activations and KV. */
async function allocateStep(
  device: GPUDevice,
  program: Program,
  options: LoadOptions,
  memory: GpuMemory,
  tiling: AttentionTiling | undefined,
): Promise<Record<StepBufferName, GPUBuffer>> {
  const sizes = stepSizes(program, options, tiling);
  const buffers: [string, GPUBuffer][] = [];
  for (const [name, [label, bytes]] of Object.entries(sizes))
    buffers.push([name, await memory.storage('step', label, bytes)]);
  const shared = Object.fromEntries(buffers) as Record<StepBufferName, GPUBuffer>;
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

/** Interleaves [cosine, sine], with the query factor of a position, if there is one, after its pairs. */
function interleave(table: RopeTable): Float32Array<ArrayBuffer> {
  const { dim, cos, sin, queryFactors } = table;
  assert(cos.length === sin.length, 'a sine for every cosine');
  const half = dim / 2;
  const stride = half + (queryFactors ? 1 : 0);
  const numPositions = cos.length / half;
  const angles = new Float32Array(ropeValues(table));
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
