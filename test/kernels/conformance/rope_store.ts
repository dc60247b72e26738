import type { Segment } from '../../../kernels/device.ts';
import type { KvDtype } from '../../../kernels/program.ts';
import { casesOf, close, loaded, noise, options, unpack, type Conformance } from './suite.ts';

/** Head size, heads, KV heads, KV type, rotated values, planes; distance of a pair, whether q has factors, and whether v is stored alone. */
type Case = readonly [
  ...[headDim: number, heads: number, kvHeads: number, kvDtype: KvDtype, dim: number, planes: readonly number[]],
  more?: { readonly apart?: number; readonly hasQueryFactors?: boolean; readonly hasComputedKeys?: boolean },
];

export function ropeStoreConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [headDim, heads, kvHeads, kvDtype, dim, planes, more = {}] of [
    [4, 2, 1, 'f32', 4, [4, 4]],
    [12, 3, 3, 'f16', 12, [36, 36]],
    [64, 4, 2, 'f16', 64, [128, 128]],
    [16, 2, 1, 'f16', 12, [16, 16]],
    [128, 3, 1, 'f32', 32, [128, 128]],
    [16, 4, 2, 'f16', 16, [32]],
    [16, 4, 2, 'f32', 16, [48, 32]],
    [16, 4, 2, 'f16', 16, [32, 36]],
    [32, 4, 1, 'f16', 8, [32, 32], { apart: 16 }],
    [512, 2, 1, 'f32', 128, [512, 512], { apart: 256 }],
    [32, 3, 1, 'f32', 32, [32, 32], { hasQueryFactors: true }],
    [24, 3, 1, 'f16', 16, [24, 24], { hasQueryFactors: true }],
    [16, 4, 2, 'f16', 8, [32], { apart: 8, hasComputedKeys: true }],
    [512, 2, 1, 'f32', 128, [512], { apart: 256, hasComputedKeys: true }],
    [16, 4, 0, 'f16', 16, []],
  ] as readonly Case[]) {
    const { apart = dim / 2, hasQueryFactors = false, hasComputedKeys = false } = more;
    const what = planes.length === 0 ? 'nothing' : hasComputedKeys ? 'v' : 'k and v';
    const how = `${apart === dim / 2 ? '' : ` in pairs ${apart} apart`}${hasQueryFactors ? ', with factors of q' : ''}`;
    test(`${name}: rope_store rotates ${dim} of heads of ${headDim}${how} and stores ${what} in ${kvDtype} at their slots, planes of ${planes.join(' and ')}`, async () => {
      const [half, width, layers, layer] = [dim / 2, (heads + planes.length * kvHeads) * headDim, 2, 1];
      const [ropeCos, ropeSin, factors] = [noise(300 * half), noise(300 * half), noise(300)];
      const optional = {
        ...(apart === half ? {} : { pairDistance: apart }),
        ...(hasQueryFactors ? { queryFactors: factors } : {}),
      };
      const executable = await loaded(
        device,
        {
          operations: [
            {
              kind: 'rope_store',
              qkv: 'qkv',
              layer,
              rope: 'table',
              heads,
              kvHeads,
              headDim,
              ...(hasComputedKeys ? { keys: 'computed' } : {}),
            },
          ],
          buffers: { qkv: { rows: 'rows', width } },
          kv: Array.from({ length: layers }, () => ({ planes })),
          rope: { table: { dim, cos: ropeCos, sin: ropeSin, ...optional } },
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
        for (let head = 0; head < heads + (hasComputedKeys ? 0 : kvHeads); head++) {
          for (let i = 0; i < half; i++) {
            const at = row * width + head * headDim + i;
            const [c, s] = [ropeCos[position * half + i]!, ropeSin[position * half + i]!];
            const [low, high] = [qkv[at]!, qkv[at + apart]!];
            rotated[at] = low * c - high * s;
            rotated[at + apart] = high * c + low * s;
          }
        }
        if (hasQueryFactors)
          for (let i = row * width; i < row * width + heads * headDim; i++) rotated[i]! *= factors[position]!;
      });
      close(await executable.read('qkv', 4), rotated, tolerance);
      if (planes.length === 0) {
        await executable.close();
        return;
      }
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
