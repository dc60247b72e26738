/** Options with which an engine loads a model. */
import type { KvDtype } from '../../kernels/program.ts';
import type { ProductsWanted } from '../../kernels/wasm/products_names.ts';
import type { WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';
import type { KernelSet } from '../../kernels/wgsl/kernel_set.ts';

/** Model, device and sizes for loadModel. */
export interface LoadModelOptions {
  readonly modelPath: string;
  /** `auto`, `wasm`, `webgpu`, `webgpu:INDEX` or `webgpu:PART_OF_NAME`. */
  readonly device: string;
  readonly kernelSet: KernelSet;
  /** Products with integer weights on the wasm device; absent: `auto`, the fastest of those that pass the trial. */
  readonly products?: ProductsWanted;
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
