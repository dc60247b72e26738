/** `/api/hardware`: the engines of a model as a replay of traces simulates them, measured where they say so. */
import { Failure } from '../../../shared/base/failure.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { ModelView } from './model_view.ts';

/**
 * Bytes per second between DRAM and device memory: PCIe 4.0 with 16 lanes. No instance measures it; `assumed` in the answer says so.
 */
const DRAM_TO_DEVICE = 25e9;

/** Mean of the measured links, in bytes per millisecond, and how many were measured. */
interface MeasuredLinks {
  readonly bytesPerMs: number;
  readonly numLinks: number;
}

/**
 * Returns the hardware of a model as an object for JSON: medians over its engines. @throws Failure `overloaded` while no engine has said
 * how long its steps take.
 */
export function hardwareView(view: ModelView, links: MeasuredLinks): Record<string, unknown> {
  const engines = [...view.of('prefill'), ...view.of('decode')].flatMap((engine) => {
    const { load } = engine;
    return engine.isCounted && load?.work ? [{ engine, work: load.work }] : [];
  });
  const blockSize = view.model?.format.blockSize;
  if (engines.length === 0 || blockSize === undefined)
    throw new Failure(
      'overloaded',
      'no engine has reported step times yet: start one, let it answer some requests and ask again',
    );
  const step = (name: keyof InstanceWork['step']): number => median(engines.map(({ work }) => work.step[name])) / 1_000;
  const ofWork = (value: (work: InstanceWork) => number): number => median(engines.map(({ work }) => value(work)));
  return {
    name: `${engines.length} engines of ${view.name}, measured`,
    step_seconds: {
      fixed: step('constantMs'),
      weights: 0,
      per_row: step('rowMs'),
      per_attended_pair: step('pairMs'),
      per_context_token_of_a_decode_row: step('contextMs'),
      per_sequence: step('sequenceMs'),
    },
    kv_bytes_per_token: ofWork(({ blockBytes }) => blockBytes) / blockSize,
    link_bytes_per_second: links.bytesPerMs * 1_000,
    dram_to_device_bytes_per_second: DRAM_TO_DEVICE,
    device_kv_tokens: ofWork(({ numBlocks }) => numBlocks) * blockSize,
    dram_kv_tokens: median(engines.map(({ engine, work }) => dramBlocks(engine, work))) * blockSize,
    max_rows: ofWork(({ chunkTokens }) => chunkTokens),
    block_tokens_of_the_trace: blockSize,
    assumed: [...(links.numLinks === 0 ? ['link_bytes_per_second'] : []), 'dram_to_device_bytes_per_second'],
  };
}

/** Blocks that an engine's DRAM tier has room for. */
function dramBlocks({ load }: Instance, { blockBytes }: InstanceWork): number {
  const capacityBytes = load?.tiers.dram?.capacityBytes ?? 0;
  return blockBytes > 0 ? Math.floor(capacityBytes / blockBytes) : 0;
}

/** Returns the middle value, the upper one of two. */
function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}
