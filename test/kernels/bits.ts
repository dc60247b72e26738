/** E2: what a device computes for a sequence has the same bits however the work is cut. */
import assert from 'node:assert/strict';
import type { Executable, SampleResult, Segment, StepExport } from '../../kernels/device.ts';
import type { KvFrame } from '../../kernels/kv_layout.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { Random } from '../../shared/base/random.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { keptState } from '../support/states.ts';

/** Rows a step takes, and how many other sequences are in every step besides, of three tokens unless told otherwise. */
export interface Cut {
  readonly chunk: number;
  readonly numOthers: number;
  readonly otherTokens?: number;
  /** Blocks leave in ranges of layers while steps compute; the last step is computed in parts, the layers before it coming between them. */
  readonly isInRanges?: boolean;
}

const NUM_TOKENS = 150;

/** Per cut, the logits and the hidden state of the last token and the KV of every full block, as text, for one prompt and one load of the model. */
export async function bitsOf(
  options: Partial<LoadModelOptions> & { modelPath: string },
  cuts: readonly Cut[],
): Promise<string[]> {
  const { executable, folder, device, layout } = await loadModel({
    ...loadDefaults,
    numBlocks: 128,
    minFrameBytes: 1,
    ...options,
  });
  const ranges = layout.spec.frames;
  const isWhole = cuts.every(({ isInRanges }) => !isInRanges);
  assert(isWhole || ranges.length > 1, 'a model with attention in one layer has one range');
  const random = new Random(3);
  const tokens = Array.from({ length: NUM_TOKENS }, () => random.below(folder.config.vocabSize));
  const blockSize = options.blockSize ?? loadDefaults.blockSize;
  const table = Array.from({ length: Math.ceil(NUM_TOKENS / blockSize) }, (_, i) => (i * 27 + 9) % 100);
  const texts: string[] = [];
  for (const { chunk, numOthers, otherTokens = 3, isInRanges = false } of cuts) {
    const exported = new Map<number, Uint8Array>();
    let last: Float32Array | undefined;
    const hidden = new Float32Array(executable.hiddenWidth);
    for (let start = 0; start < tokens.length; start += chunk) {
      const others = Array.from({ length: numOthers }, (_, i) => ({
        tokens: Array.from({ length: otherTokens }, (__, t) => i + 1 + t),
        start: 0,
        blockTable: [100 + i],
        ...keptState(executable, 0, otherTokens, 1 + i),
      }));
      const section = tokens.slice(start, start + chunk);
      const samples = [{ row: section.length - 1, numCandidates: 4, askedTokens: [], isFullRowWanted: true }];
      const end = start + section.length;
      const isLast = end === tokens.length;
      const state = keptState(executable, start, section.length);
      const own = { tokens: section, start, blockTable: table, samples, ...state, ...(isLast ? { hidden } : {}) };
      const batch = [...others, own];
      const filled = table.slice(Math.floor(start / blockSize), Math.floor(end / blockSize));
      const [result] = !isInRanges
        ? await executable.run(batch)
        : end < tokens.length || chunk >= tokens.length
          ? await exporting(executable, batch, filled, ranges.length, exported)
          : await inParts(executable, batch, table.slice(0, Math.floor(start / blockSize)), ranges);
      last = result?.fullRow;
    }
    const full = table.slice(0, Math.floor(NUM_TOKENS / blockSize));
    const payloads = full.map(() => new Uint8Array(executable.blockBytes));
    await executable.exportBlocks(full, payloads);
    full.forEach((block, i) => {
      const early = exported.get(block);
      assert(!early || Buffer.compare(early, payloads[i]!) === 0, 'what left early is what was there at the end');
    });
    texts.push(
      [
        Buffer.from(last?.buffer as ArrayBuffer),
        Buffer.from(hidden.buffer),
        ...payloads.map((bytes) => Buffer.from(bytes)),
      ]
        .map((bytes) => bytes.toString('hex'))
        .join('\n'),
    );
    // Clears the KV, so that this cut does not help the next.
    await executable.importBlocks(
      full,
      full.map(() => new Uint8Array(executable.blockBytes)),
    );
  }
  await executable.close();
  device.destroy();
  return texts;
}

/** @throws AssertionError that says which of the texts of {@link bitsOf} differ from the first, and where: logits (line 0), the hidden state, then block by block. */
export function assertSameBits(texts: readonly string[]): void {
  const [first] = texts;
  assert(first !== undefined, 'there is nothing to compare');
  const found = texts.flatMap((text, i) =>
    text === first ? [] : [`text ${i} of ${texts.length}: ${difference(first, text)}`],
  );
  assert.equal(found.length, 0, found.join('\n'));
}

/** Per line that differs, how many of its bytes do, and the first of them. */
function difference(want: string, have: string): string {
  const [wanted, had] = [want.split('\n'), have.split('\n')];
  const lines = wanted.flatMap((line, i) => {
    const [a, b] = [Buffer.from(line, 'hex'), Buffer.from(had[i] ?? '', 'hex')];
    const wrong = [...a.keys()].filter((at) => a[at] !== b[at]);
    return wrong.length === 0
      ? []
      : [`line ${i}: ${wrong.length} of ${a.length} bytes, from ${wrong[0]} to ${wrong.at(-1)}`];
  });
  return lines.slice(0, 20).join('; ');
}

/** The step, and its blocks as they left while it ran. */
async function exporting(
  executable: Executable,
  batch: readonly Segment[],
  filled: readonly number[],
  numRanges: number,
  exported: Map<number, Uint8Array>,
): Promise<SampleResult[]> {
  const blocks = filled.slice(0, executable.numExportable);
  const outs = blocks.map(() => new Uint8Array(executable.blockBytes));
  const notified: number[] = [];
  const exports: StepExport = { blocks, outs, onRange: (range) => notified.push(range) };
  const results = await executable.run(batch, blocks.length > 0 ? { exports } : {});
  if (blocks.length > 0) assert.deepEqual(notified, [...Array(numRanges).keys()]);
  blocks.forEach((block, i) => exported.set(block, outs[i]!));
  return results;
}

/** The step, whose blocks before it have each layer only when it is the next one's turn. */
async function inParts(
  executable: Executable,
  batch: readonly Segment[],
  before: readonly number[],
  ranges: readonly KvFrame[],
): Promise<SampleResult[]> {
  const payloads = before.map(() => new Uint8Array(executable.blockBytes));
  await executable.exportBlocks(before, payloads);
  await executable.importBlocks(
    before,
    before.map(() => new Uint8Array(executable.blockBytes).fill(0x3f)),
  );
  let from: number | undefined;
  for (const range of ranges) {
    const { firstLayer, offset, rawBytes } = range;
    assert.deepEqual(await executable.run(batch, { section: { from, until: firstLayer } }), []);
    const parts = payloads.map((payload) => payload.subarray(offset, offset + rawBytes));
    await executable.importBlocks(before, parts, range);
    from = firstLayer;
  }
  return executable.run(batch, { section: { from, until: undefined } });
}
