import assert from 'node:assert/strict';
import type { KvDtype } from '../../../kernels/program.ts';
import { casesOf, close, loaded, noise, numBlocksThere, options, pack, roundTo, type Conformance } from './suite.ts';

interface AttentionCase {
  readonly rows: number;
  readonly start: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly kvDtype: KvDtype;
  readonly window?: number;
  readonly cap?: number;
  /** Whether each head has a sink, and how far from 0 they may lie. */
  readonly sinks?: number;
  /** Values of a token in each plane; K and V of kv_heads · head_dim when it does not say, one plane is both. */
  readonly planes?: readonly number[];
  /** K is computed from V: so many values of a head are rotated, in pairs so far apart. The layer stores V alone. */
  readonly computed?: { readonly dim: number; readonly apart: number };
  /** Layers after the one whose K and V are read. */
  readonly layersAfter?: number;
}

/** Positions of the rotary table of computed keys. */
const NUM_POSITIONS = 700;

/**
 * Weights and angles of computed keys. With f16 they are powers of two and quarter turns, so that a key which is rounded again is the
 * same.
 */
function keyTables(kvDtype: KvDtype, headDim: number, dim: number): Record<'norm' | 'cos' | 'sin', Float32Array> {
  const [norm, angles] = [noise(headDim), noise((NUM_POSITIONS * dim) / 2)];
  if (kvDtype === 'f32') return { norm, cos: angles.map(Math.cos), sin: angles.map(Math.sin) };
  const turn = (by: number): Float32Array =>
    angles.map((value) => [0, 1, 0, -1][(Math.floor(8 * (value + 1)) + by) % 4]!);
  return { norm: norm.map((value) => (value < 0 ? -0.5 : 2)), cos: turn(1), sin: turn(0) };
}

export function attentionConformance(device: Conformance): void {
  // Every third from there on has each kind of case: windows, caps, sinks, planes, wide heads, computed keys, layers after.
  const { describe, test } = casesOf(device, 2);
  const { name, tolerance, sampled = 1 } = device;
  describe(`${name}: attention`, () => {
    const cases = [
      { rows: 1, start: 0, heads: 1, kvHeads: 1, headDim: 4, kvDtype: 'f32' },
      { rows: 1, start: 31, heads: 4, kvHeads: 2, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 32, heads: 4, kvHeads: 1, headDim: 12, kvDtype: 'f32' },
      { rows: 33, start: 40, heads: 6, kvHeads: 2, headDim: 12, kvDtype: 'f16' },
      { rows: 2, start: 126, heads: 2, kvHeads: 2, headDim: 128, kvDtype: 'f16' },
      { rows: 1, start: 127, heads: 8, kvHeads: 1, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 128, heads: 2, kvHeads: 2, headDim: 8, kvDtype: 'f32' },
      { rows: 1, start: 520, heads: 3, kvHeads: 1, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 1_150, heads: 9, kvHeads: 3, headDim: 64, kvDtype: 'f16' },
      { rows: 70, start: 210, heads: 9, kvHeads: 3, headDim: 64, kvDtype: 'f16' },
      { rows: 1, start: 400, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', window: 100 },
      { rows: 40, start: 230, heads: 2, kvHeads: 1, headDim: 16, kvDtype: 'f32', window: 33 },
      { rows: 3, start: 10, heads: 2, kvHeads: 1, headDim: 16, kvDtype: 'f16', window: 1 },
      { rows: 1, start: 300, heads: 4, kvHeads: 1, headDim: 16, kvDtype: 'f16', cap: 0.5 },
      { rows: 70, start: 93, heads: 4, kvHeads: 2, headDim: 32, kvDtype: 'f16', window: 50, cap: 2 },
      { rows: 2, start: 126, heads: 3, kvHeads: 1, headDim: 12, kvDtype: 'f32', cap: 0.1 },
      { rows: 1, start: 0, heads: 2, kvHeads: 1, headDim: 16, kvDtype: 'f16', sinks: 2 },
      { rows: 1, start: 700, heads: 8, kvHeads: 2, headDim: 64, kvDtype: 'f16', sinks: 5 },
      { rows: 70, start: 210, heads: 8, kvHeads: 1, headDim: 64, kvDtype: 'f16', sinks: 5, window: 128 },
      { rows: 3, start: 300, heads: 4, kvHeads: 2, headDim: 12, kvDtype: 'f32', sinks: 40, window: 33 },
      { rows: 1, start: 200, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', planes: [32] },
      { rows: 40, start: 33, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f32', planes: [32] },
      { rows: 1, start: 300, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', planes: [32, 48] },
      { rows: 40, start: 33, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', planes: [36, 32] },
      { rows: 3, start: 64, heads: 2, kvHeads: 1, headDim: 12, kvDtype: 'f32', planes: [16, 12] },
      { rows: 1, start: 200, heads: 2, kvHeads: 1, headDim: 512, kvDtype: 'f16' },
      { rows: 5, start: 130, heads: 8, kvHeads: 1, headDim: 512, kvDtype: 'f32' },
      { rows: 1, start: 64, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f32', computed: { dim: 8, apart: 8 } },
      { rows: 1, start: 300, heads: 8, kvHeads: 1, headDim: 32, kvDtype: 'f16', computed: { dim: 8, apart: 16 } },
      { rows: 40, start: 33, heads: 4, kvHeads: 2, headDim: 32, kvDtype: 'f16', computed: { dim: 32, apart: 16 } },
      { rows: 40, start: 33, heads: 4, kvHeads: 1, headDim: 32, kvDtype: 'f32', computed: { dim: 8, apart: 16 } },
      { rows: 3, start: 640, heads: 8, kvHeads: 1, headDim: 512, kvDtype: 'f16', computed: { dim: 128, apart: 256 } },
      { rows: 1, start: 300, heads: 4, kvHeads: 2, headDim: 16, kvDtype: 'f16', window: 100, layersAfter: 1 },
      {
        rows: 40,
        start: 33,
        heads: 4,
        kvHeads: 1,
        headDim: 16,
        kvDtype: 'f32',
        computed: { dim: 8, apart: 8 },
        layersAfter: 1,
      },
    ] as readonly AttentionCase[];
    for (const [i, shape] of cases.entries()) {
      const { rows, start, heads, kvHeads, headDim, kvDtype, window = 0, cap = 0, sinks = 0 } = shape;
      const kvWidth = kvHeads * headDim;
      const { computed, layersAfter = 0, planes = computed ? [kvWidth] : [kvWidth, kvWidth] } = shape;
      if (i % sampled !== sampled - 1) continue;
      const more = `${window ? `, window ${window}` : ''}${cap ? `, cap ${cap}` : ''}${sinks ? `, sinks up to ${sinks}` : ''}${shape.planes ? `, planes of ${planes.join(' and ')}` : ''}${computed ? `, keys computed with ${computed.dim} values rotated` : ''}${layersAfter ? ', of the layer before' : ''}`;
      test(`${rows} rows from ${start}, ${heads}/${kvHeads} heads of ${headDim}, ${kvDtype}, scattered blocks${more}`, async () => {
        const [width, layers, layer, scale] = [
          (heads + planes.length * kvHeads) * headDim,
          2,
          1,
          1 / Math.sqrt(headDim),
        ];
        const sinkOf = noise(heads).map((value) => value * sinks);
        const tables = keyTables(kvDtype, headDim, computed?.dim ?? 0);
        const { norm, ...angles } = tables;
        const rope = computed && { table: { ...angles, dim: computed.dim, pairDistance: computed.apart } };
        const executable = await loaded(
          device,
          {
            operations: [
              {
                kind: 'attention',
                qkv: 'qkv',
                out: 'out',
                layer: layer + layersAfter,
                scale,
                heads,
                kvHeads,
                headDim,
                ...(window ? { window } : {}),
                ...(cap ? { cap } : {}),
                ...(sinks ? { sinks: 'sinks' } : {}),
                ...(computed ? { keyNorm: 'norm', keyRope: 'table' } : {}),
                ...(layersAfter ? { kvLayer: layer } : {}),
              },
            ],
            buffers: { qkv: { rows: 'rows', width }, out: { rows: 'rows', width: heads * headDim } },
            weights: {
              ...(sinks ? { sinks: { outputs: heads, inner: 1, parts: [{ tensor: 'sinks', outputs: heads }] } } : {}),
              ...(computed
                ? { norm: { outputs: headDim, inner: 1, parts: [{ tensor: 'norm', outputs: headDim }] } }
                : {}),
            },
            kv: Array.from({ length: layers + layersAfter }, (_, i) => ({ planes: i < layers ? planes : [] })),
            rope: rope ?? {},
          },
          { norm, sinks: sinkOf },
          { kvDtype },
        );
        const numBlocks = Math.ceil((start + rows) / options.blockSize);
        const blockTable = Array.from({ length: numBlocks }, (_, i) => (i * 7 + 3) % numBlocksThere);
        const values = blockTable.map(() =>
          roundTo(kvDtype, noise(layers * options.blockSize * planes.reduce((sum, one) => sum + one, 0))),
        );
        await executable.importBlocks(
          blockTable,
          values.map((one) => pack(kvDtype, one)),
        );
        const qkv = noise(rows * width);
        await executable.write('qkv', qkv);
        await executable.run([{ tokens: new Array<number>(rows).fill(0), start, blockTable }]);
        const layerValues = options.blockSize * planes.reduce((sum, one) => sum + one, 0);
        const planeAt = (plane: number): number =>
          layer * layerValues + (plane === 0 || planes.length === 1 ? 0 : options.blockSize * planes[0]!);
        const at = (plane: number, token: number, kvHead: number, d: number): number =>
          values[Math.floor(token / options.blockSize)]?.[
            planeAt(plane) +
              (token % options.blockSize) * planes[Math.min(plane, planes.length - 1)]! +
              kvHead * headDim +
              d
          ] ?? NaN;
        const keyAt = (token: number, kvHead: number, d: number): number => {
          if (!computed) return at(0, token, kvHead, d);
          const [half, { apart }] = [computed.dim / 2, computed];
          const pair = d < half ? d : d >= apart && d < apart + half ? d - apart : undefined;
          const normed = (i: number): number => norm[i]! * at(0, token, kvHead, i);
          if (pair === undefined) return normed(d);
          const [c, s] = [angles.cos[token * half + pair]!, angles.sin[token * half + pair]!];
          return d === pair ? normed(d) * c - normed(d + apart) * s : normed(d) * c + normed(pair) * s;
        };
        const expected: number[] = [];
        for (let row = 0; row < rows; row++) {
          for (let head = 0; head < heads; head++) {
            const kvHead = Math.floor(head / (heads / kvHeads));
            const scores = Array.from({ length: start + row + 1 }, (_, token) => {
              let dot = 0;
              for (let d = 0; d < headDim; d++)
                dot += (qkv[row * width + head * headDim + d] ?? 0) * keyAt(token, kvHead, d);
              if (window > 0 && token + window <= start + row) return -Infinity;
              return cap > 0 ? cap * Math.tanh((dot * scale) / cap) : dot * scale;
            });
            const highest = Math.max(...scores, sinks ? sinkOf[head]! : -Infinity);
            const weights = scores.map((score) => Math.exp(score - highest));
            const sum = weights.reduce((a, b) => a + b, sinks ? Math.exp(sinkOf[head]! - highest) : 0);
            for (let d = 0; d < headDim; d++) {
              expected.push(
                weights.reduce((total, weight, token) => total + (weight / sum) * at(1, token, kvHead, d), 0),
              );
            }
          }
        }
        close(await executable.read('out', rows), expected, tolerance);

        const exported = blockTable.map(() => new Uint8Array(executable.blockBytes));
        await executable.exportBlocks(blockTable, exported);
        assert.deepEqual(
          exported.map((bytes) => Buffer.from(bytes).toString('hex')),
          values.map((one) => Buffer.from(pack(kvDtype, one)).toString('hex')),
          'blocks come out as they went in',
        );
        await executable.close();
      });
    }
  });
}
