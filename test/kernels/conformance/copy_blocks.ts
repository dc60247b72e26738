import assert from 'node:assert/strict';
import { casesOf, loaded, noise, type Conformance } from './suite.ts';

export function copyBlocksConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name } = device;
  for (const kvDtype of ['f16', 'f32'] as const) {
    test(`${name}: copyBlocks copies all layers of ${kvDtype} blocks that a step before has written, one to several, and no other`, async () => {
      const [heads, kvHeads, headDim, layers] = [2, 1, 16, 3];
      const width = (heads + 2 * kvHeads) * headDim;
      const [ropeCos, ropeSin] = [noise(300 * 8), noise(300 * 8)];
      const executable = await loaded(
        device,
        {
          operations: Array.from({ length: layers }, (_, layer) => ({
            kind: 'rope_store',
            qkv: 'qkv',
            rope: 'table',
            layer,
            heads,
            kvHeads,
            headDim,
          })),
          buffers: { qkv: { rows: 'rows', width } },
          kv: Array.from({ length: layers }, () => ({ planes: [headDim, headDim] })),
          rope: { table: { dim: 16, cos: ropeCos, sin: ropeSin } },
        },
        {},
        { kvDtype },
      );
      const all = Array.from({ length: executable.numBlocks }, (_, block) => block);
      const contents = async (): Promise<Buffer[]> => {
        const outs = all.map(() => Buffer.alloc(executable.blockBytes));
        await executable.exportBlocks(all, outs);
        return outs;
      };
      await executable.importBlocks(
        all,
        all.map((block) => Buffer.alloc(executable.blockBytes, block + 1)),
      );
      const before = await contents();
      await executable.write('qkv', noise(40 * width));
      // The copies are after the step although it has not returned.
      const step = executable.run([{ tokens: new Array<number>(40).fill(0), start: 0, blockTable: [7, 2] }]);
      executable.copyBlocks([7, 2, 7, 20, 7], [9, 3, 30, 11, 0]);
      await step;
      const after = await contents();
      const sources = new Map([
        [9, 7],
        [3, 2],
        [30, 7],
        [11, 20],
        [0, 7],
      ]);
      for (const block of all) {
        const source = sources.get(block);
        if (block === 7 || block === 2)
          assert.notDeepEqual(after[block], before[block], `the step wrote block ${block}`);
        else assert.deepEqual(after[block], source === undefined ? before[block] : after[source], `block ${block}`);
      }
      await executable.close();
    });
  }
}
