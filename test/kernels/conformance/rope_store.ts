import type { Segment } from '../../../kernels/device.ts';
import { casesOf, close, loaded, noise, options, unpack, type Conformance } from './suite.ts';

export function ropeStoreConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [headDim, heads, kvHeads, kvDtype, dim, planes] of [
    [4, 2, 1, 'f32', 4, [4, 4]],
    [12, 3, 3, 'f16', 12, [36, 36]],
    [64, 4, 2, 'f16', 64, [128, 128]],
    [16, 2, 1, 'f16', 12, [16, 16]],
    [128, 3, 1, 'f32', 32, [128, 128]],
    [16, 4, 2, 'f16', 16, [32]],
    [16, 4, 2, 'f32', 16, [48, 32]],
    [16, 4, 2, 'f16', 16, [32, 36]],
  ] as const) {
    test(`${name}: rope_store rotates ${dim} of heads of ${headDim} and stores k and v in ${kvDtype} at their slots, planes of ${planes.join(' and ')}`, async () => {
      const [half, width, layers, layer] = [dim / 2, (heads + planes.length * kvHeads) * headDim, 2, 1];
      const [ropeCos, ropeSin] = [noise(300 * half), noise(300 * half)];
      const executable = await loaded(
        device,
        {
          operations: [{ kind: 'rope_store', qkv: 'qkv', layer, rope: 'table', heads, kvHeads, headDim }],
          buffers: { qkv: { rows: 'rows', width } },
          kv: Array.from({ length: layers }, () => ({ planes })),
          rope: { table: { dim, cos: ropeCos, sin: ropeSin } },
        },
        {},
        { kvDtype },
      );
      const batch: Segment[] = [
        { tokens: [0, 0, 0], start: 30, blockTable: [7, 2] },
        { tokens: [0], start: 64, blockTable: [1, 3, 11] },
      ];
      const positions = [30, 31, 32, 64];
      const qkv = noise(4 * width);
      await executable.write('qkv', qkv);
      await executable.run(batch);
      const rotated = [...qkv];
      positions.forEach((position, row) => {
        for (let head = 0; head < heads + kvHeads; head++) {
          for (let i = 0; i < half; i++) {
            const at = row * width + head * headDim + i;
            const [c, s] = [ropeCos[position * half + i]!, ropeSin[position * half + i]!];
            const [low, high] = [qkv[at]!, qkv[at + half]!];
            rotated[at] = low * c - high * s;
            rotated[at + half] = high * c + low * s;
          }
        }
      });
      close(await executable.read('qkv', 4), rotated, tolerance);
      const blockOf = [7, 7, 2, 11];
      const blocks = [7, 2, 11].map(() => new Uint8Array(executable.blockBytes));
      await executable.exportBlocks([7, 2, 11], blocks);
      positions.forEach((position, row) => {
        const bytes = blocks[[7, 2, 11].indexOf(blockOf[row]!)]!;
        let planeAt = layer * options.blockSize * planes.reduce((sum, one) => sum + one, 0);
        for (const [plane, planeWidth] of planes.entries()) {
          const kvWidth = kvHeads * headDim;
          const from = planeAt + (position % options.blockSize) * planeWidth;
          planeAt += options.blockSize * planeWidth;
          const values = unpack(kvDtype, bytes).subarray(from, from + kvWidth);
          const want = rotated.slice(row * width + (heads + plane * kvHeads) * headDim).slice(0, kvWidth);
          close(values, want, kvDtype === 'f16' ? 2 ** -11 : tolerance);
        }
      });
      await executable.close();
    });
  }
}
