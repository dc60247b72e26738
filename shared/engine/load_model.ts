/** From a model folder to an engine-ready executable: device, program, weights, format. */
import type { Clock } from '../base/clock.ts';
import { DeviceError, type Device, type Executable, type LoadOptions } from '../../kernels/device.ts';
import type { KvDtype, Program } from '../../kernels/program.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';
import { formatDigest, type Format } from '../kv/format.ts';
import { LAYOUT_VERSION, type KvSpec } from '../kv/kv_spec.ts';
import type { RecordLayout } from '../kv/record.ts';
import { machineMemory } from '../../kernels/wasm/memory_plan.ts';
import type { Model } from '../model/model_folder.ts';
import { openModel } from '../model/open_model.ts';
import { leftOut } from '../model/left_out.ts';
import { servedLength } from '../model/served_length.ts';
import type { ModelWeights } from '../model/weights.ts';
import type { StepTimes } from './step_budget.ts';
import type { ModelShape } from '../model/model_shape.ts';
import { programOf, shapeOf } from './architectures/registry.ts';
import { checkTensors } from './check_tensors.ts';
import { storageFormats } from './storage_formats.ts';
import { ropesServed } from './architectures/decoder_rope.ts';
import type { WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { autoDevice, openDevice } from './open_device.ts';
import { kvLayoutOf, kvSpecOf, stateLayoutOf } from './program_kv.ts';
import { rowsReadFor, weightSource } from './transposed_rows.ts';
import { warmUp } from './warm_up.ts';

/** Model, device and sizes for loadModel. */
export interface LoadModelOptions {
  readonly modelPath: string;
  /** `auto`, `wasm`, `webgpu`, `webgpu:INDEX` or `webgpu:PART_OF_NAME`. */
  readonly device: string;
  readonly kernelSet: KernelSet;
  /** `auto`: as stored where devices multiply that, else f16 on webgpu and int8 on wasm. */
  readonly weightFormat: WeightFormat | 'auto';
  /** Device memory to use, bytes; 0: what there is. Only webgpu has its own. */
  readonly deviceMemoryBytes: number;
  /** Engines that divide what the device has. */
  readonly deviceSharing: number;
  readonly kvDtype: KvDtype;
  /** Blocks of other numerics classes may be hit. */
  readonly isMixingNumerics?: boolean;
  readonly blockSize: number;
  /** Least raw bytes of a record's frame; the spec's own when it does not say. */
  readonly minFrameBytes?: number;
  /** Bounds of the wasm device, which tests narrow. */
  readonly wasmBounds?: WasmBounds;
  /**
   * 0: on wasm as many as 512 MiB hold, at least two full sequences, at most 4,096, and no more than an eighth of the machine's memory divided
   * among the engines; on webgpu what is left after the weights.
   */
  readonly numBlocks: number;
  /**
   * Slots for recurrent states, for models that have them: of running sequences, and saved ones. 0 or absent: as many as half of the
   * automatic KV memory holds on wasm, and 1 GiB on webgpu, at least 8 and at most three for each sequence.
   */
  readonly numStateSlots?: number;
  /** 0: one per core. */
  readonly numThreads: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  /** 0: what the model was trained for. */
  readonly maxModelLen: number;
}

/** A model that is ready to run: its device, executable, KV layout and sizes. */
export interface LoadedModel {
  readonly folder: Model;
  readonly shape: ModelShape;
  readonly device: Device;
  /** For people: the device, and why it is not the one that `auto` would have liked. */
  readonly description: string;
  readonly executable: Executable;
  readonly format: Format;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxModelLen: number;
  /** Step times measured by the warm-up on this device; the step budget starts with them. */
  readonly firstSteps: readonly StepTimes[];
}

/** Device bytes for pages of logit biases and token counts. Sequences that find no free page are sampled on the host. */
const SAMPLE_PAGE_BYTES = 64 * 2 ** 20;
const AUTO_KV_BYTES = 512 * 2 ** 20;
const AUTO_MAX_BLOCKS = 4_096;
/** Automatic memory for recurrent states on a GPU, and least slots for them anywhere. */
const GPU_STATE_BYTES = 1 << 30;
const MIN_STATE_SLOTS = 8;
/**
 * Automatic KV memory takes at most one part in 8 of the machine's memory. Untouched pages cost nothing, but memory that long contexts
 * touch must exist.
 */
const AUTO_KV_PART = 8;
/** Most KV blocks on a GPU: 2 million tokens at 32 per block, a number that the pool's indexes hold without strain. */
const GPU_MAX_BLOCKS = 65_536;

type OnProgress = (doneBytes: number, totalBytes: number) => void;

/**
 * Loads a model, and with `device` 'auto' chooses the device: a hardware adapter if it can run the model, else wasm. @throws
 * ModelError, DeviceError before anything listens.
 */
export async function loadModel(
  options: LoadModelOptions,
  onProgress?: OnProgress,
  clock?: Pick<Clock, 'nowMs'>,
): Promise<LoadedModel> {
  if (options.device !== 'auto') return loadOn(options.device, '', options, clock, onProgress);
  const { device, reason } = await autoDevice();
  if (device === 'wasm') return loadOn('wasm', '', options, clock, onProgress);
  try {
    return await loadOn(device, '', options, clock, onProgress);
  } catch (error) {
    // The adapter or its kernels are not enough for this model.
    if (!(error instanceof DeviceError)) throw error;
    return loadOn('wasm', ` although ${reason}: ${error.message}`, options, clock, onProgress);
  }
}

/** Loads a model on the named device; `why` is appended to the device's description. */
async function loadOn(
  deviceName: string,
  why: string,
  options: LoadModelOptions,
  clock: Pick<Clock, 'nowMs'> | undefined,
  onProgress: OnProgress | undefined,
): Promise<LoadedModel> {
  const folder = await openModel(options.modelPath);
  const device = await openDevice({ ...options, device: deviceName });
  const shape = shapeOf(folder);
  const maxModelLen = servedLength(shape, options.maxModelLen);
  const program = programOf(folder.config, shape, maxModelLen);
  const { blockSize, kvDtype, minFrameBytes } = options;
  const windows = shape.layers.map(({ window }) => window);
  const spec = kvSpecOf(program, windows, { blockSize, valueType: kvDtype, minFrameBytes });
  const kv = kvLayoutOf(spec);
  const maxBlocksPerSequence = Math.ceil(maxModelLen / blockSize);
  const weights = await folder.openWeights();
  try {
    checkTensors(program, weights.shapes, weights.path);
    const held = storageFormats(program, weights, options.weightFormat, device.kind === 'webgpu' ? 'f16' : 'int8');
    await device.checkRows(held.program, { weightFormat: held.common, kv });
    if (device.fault !== undefined)
      throw new DeviceError(
        `${device.description}: ${device.fault}; use another --device, or another version of its driver`,
      );
    const executable = await device.load(held.program, weightSource(weights), {
      maxRows: Math.max(options.chunkTokens, options.maxNumSeqs),
      maxSamples: options.maxNumSeqs,
      maxBlocksPerSequence,
      weightFormat: held.common,
      ...{ kv, ...statesOf(spec, options, device) },
      numBlocks: numBlocksOf(options, device, maxBlocksPerSequence, spec.payloadBytes),
      samplerPages: Math.min(2 * options.maxNumSeqs, Math.floor(SAMPLE_PAGE_BYTES / (4 * shape.vocabSize))),
      nowMs: clock && (() => clock.nowMs()),
      ...(onProgress ? { onProgress: progressOf(held.program, weights, onProgress) } : {}),
    });
    const { numBlocks } = executable;
    const firstSteps = await warmUp(executable, {
      ...options,
      maxModelLen,
      numBlocks,
      nowMs: clock && (() => clock.nowMs()),
    });
    const numericsClass = `${device.numericsClass}/w-${held.label}`;
    const format: Format = {
      model: weights.fingerprint(JSON.stringify({ ...shape, ropes: ropesServed(shape.ropes, maxModelLen) })),
      weightFormat: held.label,
      kvDtype,
      layoutVersion: LAYOUT_VERSION,
      blockSize,
      // With mix_numerics, different numerics classes share KV blocks; different revisions of the kernels do not.
      numerics: options.isMixingNumerics ? device.mixedNumericsClass : numericsClass,
      kv: spec.digest,
    };
    const layout: RecordLayout = { format: formatDigest(format), numericsClass, spec };
    const clauses = [`${device.description}; weights: ${held.changes}${why}`, ...device.notes];
    const description = [...clauses, ...leftOut(weights.shapes.keys())].join('; ');
    return {
      ...{ folder, shape, device, description, executable, format, layout, numBlocks, maxModelLen, firstSteps },
    };
  } finally {
    await weights.close();
  }
}

/** Returns a progress callback that counts bytes of the model's files, whatever their storage format on the device. */
function progressOf({ weights: specs }: Program, weights: ModelWeights, onProgress: OnProgress): () => void {
  const parts = Object.values(specs).flatMap((spec) => spec.parts);
  const totalBytes = parts.reduce((sum, part) => sum + weights.storedBytes(rowsReadFor(part)), 0);
  return () => {
    onProgress(Math.min(weights.doneBytes, totalBytes), totalBytes);
  };
}

/** Returns the layout and the number of slots for recurrent states; nothing for a model without recurrent layers. */
function statesOf(
  spec: KvSpec,
  { numStateSlots = 0, maxNumSeqs, deviceSharing }: LoadModelOptions,
  device: Device,
): Pick<LoadOptions, 'state' | 'numStateSlots'> {
  const state = stateLayoutOf(spec);
  if (!state) return {};
  const bytes = (device.kind === 'webgpu' ? GPU_STATE_BYTES : AUTO_KV_BYTES / 2) / deviceSharing;
  const fitting = Math.min(3 * maxNumSeqs, Math.floor(bytes / state.slotBytes));
  return { state, numStateSlots: numStateSlots > 0 ? Math.max(2, numStateSlots) : Math.max(MIN_STATE_SLOTS, fitting) };
}

function numBlocksOf(
  { numBlocks: wanted, deviceSharing }: LoadModelOptions,
  device: Device,
  maxBlocksPerSequence: number,
  blockBytes: number,
): { min: number; max: number } {
  if (wanted > 0) return { min: wanted, max: wanted };
  if (device.kind === 'webgpu') return { min: maxBlocksPerSequence, max: GPU_MAX_BLOCKS };
  const fitting = Math.max(2 * maxBlocksPerSequence, Math.floor(AUTO_KV_BYTES / blockBytes));
  const most = Math.floor(machineMemory() / AUTO_KV_PART / deviceSharing / blockBytes);
  const count = Math.max(1, Math.min(AUTO_MAX_BLOCKS, fitting, most));
  return { min: count, max: count };
}
