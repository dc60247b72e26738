/**
 * Blocks of which only those layers come that somebody sees: tokens are those of an engine that has all, and nobody else is given them (K1).
 * Device memory is poisoned before, so that whatever is read unseen would show.
 */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Random } from '../../shared/base/random.ts';
import { loadModel, type LoadedModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { chainOf, type AnchoredHash } from '../../shared/kv/block_key.ts';
import type { FrameSpec } from '../../shared/kv/kv_spec.ts';
import { Harness } from '../support/engine_harness.ts';
import { goldenFolder } from '../support/golden.ts';
import { generate, greedy, loadDefaults } from '../support/reference_loop.ts';

const [NUM_BLOCKS, CHUNK, LENGTH, NUM_NEW] = [32, 64, 330, 24];
const blockSize = 32;
/** Blocks before the tail. */
const NUM_FULL = 10;

export function windowSuite(names: readonly string[], options: Partial<LoadModelOptions> = {}): void {
  describe.each(names)('%s, layers with windows', (name) => {
    let model: LoadedModel;
    let frames: readonly FrameSpec[];
    let windows: readonly number[];
    let prompt: number[];
    let hashes: readonly AnchoredHash[];
    let payloads: Uint8Array[];
    let want: number[];

    beforeAll(async () => {
      model = await loadModel({
        ...loadDefaults,
        modelPath: goldenFolder(name),
        numBlocks: NUM_BLOCKS,
        chunkTokens: 512,
        minFrameBytes: 1,
        ...options,
      });
      ({ frames } = model.layout.spec);
      windows = frames.map(({ window }) => window);
      assert(windows.some((window) => window > 0));
      const random = new Random(12);
      prompt = Array.from({ length: LENGTH }, () => random.below(250));
      want = (await generate(model.executable, prompt, greedy, NUM_NEW)).map(({ token }) => token);
      hashes = chainOf(model.layout.format, blockSize, prompt);
      const source = new Harness(model, NUM_BLOCKS, CHUNK);
      source.submit(prompt, 0, { kind: 'prefill', maxLength: prompt.length });
      await source.run();
      payloads = hashes.slice(0, NUM_FULL).map(() => new Uint8Array(model.executable.blockBytes));
      const wanted = payloads.map((out, i) => ({ hash: hashes[i]!, out }));
      assert((await source.engine.exportTo(wanted)).every((isHeld) => isHeld));
    });
    afterAll(async () => {
      await model.executable.close();
    });

    /** Whether a row from `row` on sees a token of the block in that frame. */
    const isSeen = (block: number, frame: number, row: number): boolean =>
      windows[frame] === 0 || (block + 1) * blockSize - 1 >= row - windows[frame]! + 1;

    async function poison(): Promise<void> {
      const bytes = new Uint8Array(model.executable.blockBytes).fill(0x7e);
      const all = Array.from({ length: NUM_BLOCKS }, (_, i) => i);
      await model.executable.importBlocks(
        all,
        all.map(() => bytes),
      );
    }

    async function deliver(h: Harness, id: number, comes: (block: number, frame: number) => boolean): Promise<void> {
      for (const [blockIndex, payload] of payloads.entries())
        for (const [frame, { offset, rawBytes }] of frames.entries())
          if (comes(blockIndex, frame))
            await h.engine.incoming.blocks(id, [
              { blockIndex, frame, origin: 'instance', payload: payload.subarray(offset, offset + rawBytes) },
            ]);
    }

    /** A decode that was given what `comes` says of each frame; whether a token is right, and what it reports. */
    async function decode(comes: (block: number, frame: number) => boolean): Promise<{ h: Harness; id: number }> {
      await poison();
      const h = new Harness(model, NUM_BLOCKS, CHUNK);
      const id = h.submit(prompt, NUM_NEW, { isFetching: true });
      await h.engine.step();
      await deliver(h, id, comes);
      h.engine.incoming.ended(id);
      await h.run();
      assert.deepEqual(h.outputs.get(id), want);
      return { h, id };
    }

    test('what no row sees is not needed, and a block without it is nobody else’s', async () => {
      const row = NUM_FULL * blockSize;
      const numLeft = payloads.flatMap((_, block) =>
        windows.filter((_window, frame) => !isSeen(block, frame, row)),
      ).length;
      assert(numLeft >= 7, `${numLeft} frames are left out`);
      const { h, id } = await decode((block, frame) => isSeen(block, frame, row));
      expect(h.reports.get(id)).toMatchObject({ fetchedTokens: row, computedTokens: LENGTH - row });
      payloads.forEach((_, block) => {
        const isWhole = windows.every((_window, frame) => isSeen(block, frame, row));
        assert.equal(h.hashes.has(hashes[block]!.key), isWhole, `block ${block} is told of`);
        assert.equal(h.engine.pool.find(hashes[block]!) !== undefined, isWhole, `block ${block} can be hit`);
      });
      // The next one has the same tokens, and not what is missing.
      const again = h.submit(prompt, NUM_NEW);
      await h.run();
      assert.deepEqual(h.outputs.get(again), want);
    });

    test('a prefill needs no more, and what it computes is what one computes that has all', async () => {
      const there = 5;
      const row = there * blockSize;
      await poison();
      const h = new Harness(model, NUM_BLOCKS, CHUNK);
      const id = h.submit(prompt, 0, { kind: 'prefill', maxLength: prompt.length, isFetching: true });
      await h.engine.step();
      await deliver(h, id, (block, frame) => block < there && isSeen(block, frame, row));
      h.engine.incoming.ended(id);
      await h.run();
      expect(h.reports.get(id)).toMatchObject({ fetchedTokens: row, computedTokens: NUM_FULL * blockSize - row });
      for (let block = 0; block < there; block++) {
        const isWhole = windows.every((_window, frame) => isSeen(block, frame, row));
        assert.equal(h.engine.pool.find(hashes[block]!) !== undefined, isWhole, `block ${block} can be hit`);
      }
      const computed = payloads.slice(there).map(() => new Uint8Array(model.executable.blockBytes));
      const wanted = computed.map((out, i) => ({ hash: hashes[there + i]!, out }));
      assert((await h.engine.exportTo(wanted)).every((isHeld) => isHeld));
      computed.forEach((out, i) => {
        assert(Buffer.from(out).equals(payloads[there + i]!), `block ${there + i} has the same bits`);
      });
    });

    test('a frame that is seen and did not come: its block is computed, and all that it needs for that', async () => {
      const row = NUM_FULL * blockSize;
      const [missing, lastFrame] = [NUM_FULL - 1, frames.length - 1];
      const { h, id } = await decode(
        (block, frame) => isSeen(block, frame, row) && !(block === missing && frame === lastFrame),
      );
      const report = h.reports.get(id)!;
      assert.equal(report.fetchedTokens + report.computedTokens, LENGTH);
      assert(report.computedTokens > LENGTH - row, `${report.computedTokens} tokens were computed`);
    });

    test('a fetch that ends half way: what came of it is used where nothing is missing', async () => {
      const row = NUM_FULL * blockSize;
      const { h, id } = await decode((block, frame) => block < 5 && isSeen(block, frame, row));
      const report = h.reports.get(id)!;
      assert.equal(report.computedTokens, LENGTH, 'rows in the middle see more than those at the end');
      // The frames that came suffice for a row in the middle, and are used there.
      const middle = await decode((block, frame) => block < 5 && isSeen(block, frame, 5 * blockSize));
      expect(middle.h.reports.get(middle.id)).toMatchObject({
        fetchedTokens: 5 * blockSize,
        computedTokens: LENGTH - 5 * blockSize,
      });
    });

    test('whole blocks after a gap are used, parted ones are computed', async () => {
      await decode((block) => block !== 4);
      await decode((block, frame) => block !== 4 && isSeen(block, frame, NUM_FULL * blockSize));
      await decode((block) => block > 2);
    });
  });
}
