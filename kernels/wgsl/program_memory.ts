/** Bytes that a program takes on a GPU: of the buffers that the loader makes, and of everything together before anything is made. */
import { MAX_CANDIDATES, type LoadOptions } from '../device.ts';
import type { MemoryNeeds } from '../memory_needs.ts';
import type { Program, RopeTable } from '../program.ts';
import { samplingOf } from '../program_kinds.ts';
import { exp2Table } from '../sampling.ts';
import { numStateSlotsOf } from '../state_slots.ts';
import { attentionTiling, type AttentionTiling } from './attention_tiling.ts';
import { transferBytes } from './block_transfer.ts';
import { rowStride } from './dispatch_plan.ts';
import { fuse, fusedAway } from './fusion.ts';
import { weightBytes } from './gpu_weights.ts';
import { candidateTiles } from './ops/candidates.ts';
import { sampleStateBytes } from './ops/sample.ts';
import { hiddenBackBytes, NUM_AHEAD, rowsBackBytes } from './read_back.ts';
import { routingBytes } from './routing.ts';
import { planExport, type ExportPlan } from './step_export.ts';
import { stateTransferBytes } from './state_transfer.ts';
import { MAX_RESULT_WORDS, numStepWords } from './step_state.ts';

/** Returns the bytes of each activation buffer by its name, without those that are `unwritten`. */
export function activationSizes(
  program: Program,
  { maxRows, maxSamples }: LoadOptions,
  unwritten: ReadonlySet<string>,
): Map<string, number> {
  const sizes = new Map<string, number>();
  for (const [name, { rows, perRow = 1, width }] of Object.entries(program.buffers)) {
    if (unwritten.has(name)) continue;
    const numRows = perRow * (rows === 'samples' ? maxSamples : maxRows);
    sizes.set(name, numRows * rowStride(width) * 4);
  }
  return sizes;
}

/** Names of the buffers that the dispatches of a step share, apart from activations and KV. */
export type StepBufferName =
  | ('step' | 'parts' | 'partStats' | 'lists' | 'stats' | 'results')
  | ('exp2Table' | 'samplerPages' | 'slots' | 'sampleState' | 'routing' | 'none');

/** Returns the label and the bytes of each buffer that the dispatches of a step share, by its name. */
export function stepSizes(
  program: Program,
  options: LoadOptions,
  tiling: AttentionTiling | undefined,
): Readonly<Record<StepBufferName, readonly [label: string, bytes: number]>> {
  const { maxRows, maxSamples, samplerPages = 0 } = options;
  const candidates = program.operations.find((op) => op.kind === 'candidates');
  const tiles = candidates ? candidateTiles(candidates.vocab) : 0;
  const vocab = samplingOf(program)?.vocab ?? 0;
  const hasSamples = program.operations.some(({ kind }) => kind === 'sample');
  const partials = tiling?.maxPartials ?? 0;
  return {
    step: ['step', numStepWords(options, tiling, vocab) * 4],
    parts: ['attention partials', partials * (tiling?.partialValues ?? 0) * 4],
    partStats: ['attention partial sums', partials * (tiling?.partialHeads ?? 0) * 8],
    lists: ['candidate lists', maxSamples * tiles * MAX_CANDIDATES * 8],
    stats: ['candidate sums', maxSamples * tiles * 8],
    results: ['results', maxSamples * MAX_RESULT_WORDS * 4],
    exp2Table: ['powers of two', exp2Table.byteLength],
    samplerPages: ['sampler pages', Math.max(16, samplerPages * vocab * 4)],
    slots: ['sampled tokens', maxSamples * 4],
    sampleState: ['sampling', hasSamples ? sampleStateBytes(vocab, maxSamples) : 16],
    routing: ['routing', routingBytes(program, maxRows)],
    none: ['none', 16],
  };
}

/** Returns the values of a table of angles on the device: [cosine, sine] of each pair, with a query factor after a position's pairs. */
export function ropeValues({ dim, cos, queryFactors }: RopeTable): number {
  const half = dim / 2;
  return 2 * (half + (queryFactors ? 1 : 0)) * (cos.length / half);
}

/** Returns the plan of exports, and the bytes of buffers that are made after the KV blocks, apart from those that move blocks. */
export function laterBuffers(
  program: Program,
  { maxRows, maxSamples, kv }: LoadOptions,
): { readonly exports: ExportPlan; readonly bytes: number } {
  const candidates = program.operations.find((op) => op.kind === 'candidates');
  const rowsBack = candidates ? rowsBackBytes(candidates.vocab, maxSamples) : 0;
  const exports = planExport(kv, Math.ceil(maxRows / kv.blockSize), 1 + NUM_AHEAD);
  return { exports, bytes: rowsBack + hiddenBackBytes(program, maxRows) + exports.bytes };
}

/** Returns the memory that loading the program takes. `maxBytes`: most bytes of a buffer on this adapter. */
export function memoryNeeds(
  program: Program,
  options: LoadOptions,
  { isSoftware, maxBytes }: { readonly isSoftware: boolean; readonly maxBytes: number },
): MemoryNeeds {
  const { kv, state, numBlocks, weightFormat } = options;
  const sum = (sizes: readonly number[]): number => sizes.reduce((bytes, size) => bytes + size, 0);
  const widest = (layers: readonly { readonly bytes: number }[]): number =>
    Math.max(0, ...layers.map((layer) => layer.bytes));
  const most = (layers: readonly { readonly bytes: number }[]): number =>
    widest(layers) > 0 ? Math.floor(maxBytes / widest(layers)) : Infinity;
  const tiling = attentionTiling(program, options, isSoftware);
  const slots = numStateSlotsOf(options);
  return {
    weights: sum(Object.values(program.weights).map((spec) => weightBytes(spec, weightFormat))),
    kv: numBlocks.min * kv.blockBytes,
    states: slots * (state?.slotBytes ?? 0),
    other:
      sum([...activationSizes(program, options, fusedAway(fuse(program))).values()]) +
      sum(Object.values(stepSizes(program, options, tiling)).map(([, bytes]) => bytes)) +
      sum(Object.values(program.rope).map((table) => ropeValues(table) * 4)) +
      (state && slots > 0 ? stateTransferBytes(state) : 0) +
      (kv.blockBytes > 0 ? laterBuffers(program, options).bytes + transferBytes(kv.blockBytes) : 0),
    mostBlocks: most(kv.layers),
    mostSlots: most(state?.layers ?? []),
    obstacle: undefined,
  };
}
