/** Plans how a model is loaded: its program, storage formats and sizes, before any weight is read. */
import type { Device, LoadOptions } from '../../kernels/device.ts';
import type { Program } from '../../kernels/program.ts';
import { machineMemory } from '../../kernels/wasm/memory_plan.ts';
import type { KvSpec } from '../kv/kv_spec.ts';
import type { Model } from '../model/model_folder.ts';
import type { ModelShape } from '../model/model_shape.ts';
import { servedLength } from '../model/served_length.ts';
import type { ModelWeights } from '../model/weights.ts';
import { programOf } from './architectures/registry.ts';
import { checkTensors } from './check_tensors.ts';
import type { LoadModelOptions } from './load_options.ts';
import { kvLayoutOf, kvSpecOf, stateLayoutOf } from './program_kv.ts';
import { storageFormats, type StorageFormats } from './storage_formats.ts';

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

/** How a model is loaded with given options. */
export interface LoadPlan {
  /** Context that is served, tokens. */
  readonly maxModelLen: number;
  readonly held: StorageFormats;
  readonly spec: KvSpec;
  readonly load: LoadOptions;
}

/** Model and device of a plan. */
export interface PlanSubject {
  readonly folder: Pick<Model, 'config'>;
  readonly shape: ModelShape;
  readonly weights: Pick<ModelWeights, 'integersOf' | 'storedAs' | 'shapes' | 'path' | 'whyMissing'>;
  readonly device: Pick<Device, 'kind'>;
}

/** Plans loads of one model on one device with various options. */
export class LoadPlanner {
  readonly #of: PlanSubject;
  /** The latest program: tables of angles take a moment for long contexts. */
  #program: { readonly maxModelLen: number; readonly program: Program } | undefined;

  constructor(of: PlanSubject) {
    this.#of = of;
  }

  /** Returns the plan of a load. @throws ModelError when the files lack a tensor, or the model serves no such context. */
  plan(options: LoadModelOptions): LoadPlan {
    const { shape, weights, device } = this.#of;
    const { blockSize, kvDtype, minFrameBytes } = options;
    const maxModelLen = servedLength(shape, options.maxModelLen);
    const program = this.#programOf(maxModelLen);
    const windows = shape.layers.map(({ window }) => window);
    const spec = kvSpecOf(program, windows, { blockSize, valueType: kvDtype, minFrameBytes });
    const held = storageFormats(program, weights, options.weightFormat, device.kind === 'webgpu' ? 'f16' : 'int8');
    const maxBlocksPerSequence = Math.ceil(maxModelLen / blockSize);
    const load = {
      maxRows: Math.max(options.chunkTokens, options.maxNumSeqs),
      maxSamples: options.maxNumSeqs,
      maxBlocksPerSequence,
      weightFormat: held.common,
      kv: kvLayoutOf(spec),
      ...statesOf(spec, options, device),
      numBlocks: numBlocksOf(options, device, maxBlocksPerSequence, spec.payloadBytes),
      samplerPages: Math.min(2 * options.maxNumSeqs, Math.floor(SAMPLE_PAGE_BYTES / (4 * shape.vocabSize))),
    };
    return { maxModelLen, held, spec, load };
  }

  #programOf(maxModelLen: number): Program {
    if (this.#program?.maxModelLen === maxModelLen) return this.#program.program;
    const { folder, shape, weights } = this.#of;
    const program = programOf(folder.config, shape, maxModelLen);
    checkTensors(program, weights.shapes, weights.path, (tensor) => weights.whyMissing?.(tensor));
    this.#program = { maxModelLen, program };
    return program;
  }
}

/** Returns the layout and the number of slots for recurrent states; nothing for a model without recurrent layers. */
function statesOf(
  spec: KvSpec,
  { numStateSlots = 0, maxNumSeqs, deviceSharing }: LoadModelOptions,
  device: Pick<Device, 'kind'>,
): Pick<LoadOptions, 'state' | 'numStateSlots'> {
  const state = stateLayoutOf(spec);
  if (!state) return {};
  const bytes = (device.kind === 'webgpu' ? GPU_STATE_BYTES : AUTO_KV_BYTES / 2) / deviceSharing;
  const fitting = Math.min(3 * maxNumSeqs, Math.floor(bytes / state.slotBytes));
  return { state, numStateSlots: numStateSlots > 0 ? Math.max(2, numStateSlots) : Math.max(MIN_STATE_SLOTS, fitting) };
}

function numBlocksOf(
  { numBlocks: wanted, deviceSharing }: LoadModelOptions,
  device: Pick<Device, 'kind'>,
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
