/** Moves layers of some blocks between the KV cache and a staging buffer, in which the moved layers of each block lie side by side. */
import type { LayerRange } from '../kv_layout.ts';
import { gatherBlocks } from './gather_blocks.ts';
import type { GpuMemory } from './gpu_memory.ts';
import { packParams, PARAMS_STRIDE, type KernelCache } from './kernel.ts';
import { polled } from './polling.ts';

/** Bytes that a thread moves. */
const QUAD = 16;

/** Position of a layer within the staged part of a block, and the size of that staged part, both in bytes. */
interface StagedLayer {
  readonly at: number;
  readonly stagedBytes: number;
}

/** Buffers and sizes that a {@link BlockGather} is made for. */
export interface BlockGatherOptions {
  readonly label: string;
  readonly device: GPUDevice;
  readonly memory: GpuMemory;
  readonly kernels: KernelCache;
  /** A buffer per layer, `layerBytes` of a block each. */
  readonly kv: readonly GPUBuffer[];
  readonly layerBytes: readonly number[];
  /** Staging position of each layer, by layer index. */
  readonly staged: readonly StagedLayer[];
  /** Maximum number of blocks staged at a time. */
  readonly numBlocks: number;
}

/** Copies layers of some blocks from the KV cache to a contiguous staging buffer (gather), or back (scatter). */
export class BlockGather {
  readonly staging: GPUBuffer;
  readonly #device: GPUDevice;
  readonly #pipelines: Readonly<Record<'gather' | 'scatter', GPUComputePipeline>>;
  /** Bind group of each layer, by layer index. */
  readonly #bindGroups: readonly GPUBindGroup[];
  readonly #groupsX: readonly number[];
  readonly #list: GPUBuffer;

  private constructor(
    { device, kernels, kv, layerBytes }: BlockGatherOptions,
    pipelines: Readonly<Record<'gather' | 'scatter', GPUComputePipeline>>,
    { list, staging, params }: Readonly<Record<'list' | 'staging' | 'params', GPUBuffer>>,
  ) {
    this.#device = device;
    this.#pipelines = pipelines;
    this.#list = list;
    this.staging = staging;
    this.#bindGroups = kv.map((layer, i) =>
      kernels.bind(gatherBlocks, { buffer: params, offset: i * PARAMS_STRIDE }, { list, kv: layer, staging }),
    );
    this.#groupsX = layerBytes.map((bytes) => Math.ceil(bytes / QUAD / gatherBlocks.constants.WORKGROUP_SIZE));
  }

  /** @throws DeviceError when the device is full. */
  static async create(options: BlockGatherOptions): Promise<BlockGather> {
    const { label, device, memory, kernels, layerBytes, staged, numBlocks } = options;
    const widest = Math.max(...staged.map(({ stagedBytes }) => stagedBytes));
    const list = await memory.storage('transfer', `${label} list`, numBlocks * 4);
    const staging = await memory.storage('transfer', `${label} staging`, numBlocks * widest);
    const bytes = layerBytes.length * PARAMS_STRIDE;
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const params = await memory.allocate('transfer', `${label} params`, bytes, usage);
    const values = new DataView(new ArrayBuffer(bytes));
    staged.forEach(({ at, stagedBytes }, i) => {
      const fields = { layer_at: at / QUAD, layer_quads: layerBytes[i]! / QUAD, record_quads: stagedBytes / QUAD };
      packParams(gatherBlocks, fields, values, i * PARAMS_STRIDE);
    });
    device.queue.writeBuffer(params, 0, values.buffer);
    const [gather, scatter] = await polled(
      Promise.all([0, 1].map((SCATTER) => kernels.pipeline(gatherBlocks, { constants: { SCATTER } }))),
    );
    return new BlockGather(options, { gather: gather!, scatter: scatter! }, { list, staging, params });
  }

  /** Sets the blocks that every pass submitted from now on moves. */
  choose(blocks: readonly number[]): void {
    this.#device.queue.writeBuffer(this.#list, 0, Uint32Array.from(blocks));
  }

  encode(
    encoder: GPUCommandEncoder,
    direction: 'gather' | 'scatter',
    { firstLayer, numLayers }: LayerRange,
    numBlocks: number,
  ): void {
    const pass = encoder.beginComputePass();
    pass.setPipeline(this.#pipelines[direction]);
    for (let layer = firstLayer; layer < firstLayer + numLayers; layer++) {
      if (this.#groupsX[layer] === 0) continue;
      pass.setBindGroup(0, this.#bindGroups[layer]);
      pass.dispatchWorkgroups(this.#groupsX[layer]!, numBlocks);
    }
    pass.end();
  }
}
