/** The GGUF file written for the peer, read back by the rules of the format, is the engine's own model. */
import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'vitest';
import { roundRows } from '../../kernels/weights/weight_format.ts';
import { RowDecoder } from '../../kernels/weights/stored_rows.ts';
import type { WeightSource } from '../../kernels/device.ts';
import { checkTensors } from '../../shared/engine/check_tensors.ts';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import type { ModelShape } from '../../shared/model/model_shape.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { halfValue } from '../support/half.ts';
import { writeGguf, type GgufFormat } from './gguf.ts';
import { randomWeights } from './random_weights.ts';
import { shapeOfUniform, uniformTensors } from './uniform_model.ts';

const config = {
  hidden: 64,
  layers: 2,
  heads: 4,
  kvHeads: 2,
  headDim: 16,
  inner: 128,
  vocabSize: 300,
  maxPositions: 64,
  epsilon: 1e-5,
  ropeTheta: 10_000,
};
const program = decoderProgram(shapeOfUniform(config), 64);
const source = randomWeights(program, 7);

/** Returns all values of a tensor, row after row. */
async function tensor(name: string): Promise<Float32Array> {
  const decoder = new RowDecoder();
  const values: number[] = [];
  for (const { inner, parts } of Object.values(program.weights))
    for (const part of parts.filter((one) => one.tensor === name))
      for await (const rows of source.slices(part)) values.push(...decoder.floats(rows, inner));
  return Float32Array.from(values);
}

/** A reader of its own: headers, then tensors as bytes. */
function readGguf(path: string): Map<string, { dims: number[]; type: number; bytes: Buffer }> {
  const file = readFileSync(path);
  let at = 0;
  const u32 = (): number => file.readUInt32LE((at += 4) - 4);
  const u64 = (): number => Number(file.readBigUInt64LE((at += 8) - 8));
  const text = (): string => {
    const length = u64();
    return file.toString('utf8', at, (at += length));
  };
  const skip = (type: number): void => {
    if (type === 8) text();
    else if (type === 9) {
      const of = u32();
      for (let count = u64(); count > 0; count--) skip(of);
    } else at += 4;
  };
  assert.equal(file.toString('latin1', 0, (at += 4)), 'GGUF');
  assert.equal(u32(), 3);
  const [numTensors, numEntries] = [u64(), u64()];
  for (let i = 0; i < numEntries; i++) {
    text();
    skip(u32());
  }
  const infos = Array.from({ length: numTensors }, () => {
    const name = text();
    const dims = Array.from({ length: u32() }, u64);
    return { name, dims, type: u32(), offset: u64() };
  });
  const start = Math.ceil(at / 32) * 32;
  return new Map(
    infos.map(({ name, dims, type, offset }) => {
      assert.equal(offset % 32, 0);
      return [name, { dims, type, bytes: file.subarray(start + offset) }];
    }),
  );
}

function decode(type: number, bytes: Buffer, count: number): number[] {
  const values: number[] = [];
  for (let at = 0; values.length < count;) {
    if (type === 0) values.push(bytes.readFloatLE((at += 4) - 4));
    else if (type === 1) values.push(halfValue(bytes.readUInt16LE((at += 2) - 2)));
    else {
      const scale = halfValue(bytes.readUInt16LE(at));
      at += 2;
      if (type === 8) for (let i = 0; i < 32; i++) values.push(bytes.readInt8(at++) * scale);
      else {
        const packed = bytes.subarray(at, (at += 16));
        for (const byte of packed) values.push(((byte & 15) - 8) * scale);
        for (const byte of packed) values.push(((byte >> 4) - 8) * scale);
      }
    }
  }
  return values;
}

test.each([
  ['f16', 1],
  ['int8', 8],
  ['int4', 2],
] as const satisfies readonly (readonly [GgufFormat, number])[])(
  'a %s file holds the values that the engine computes with',
  async (format, type) => {
    const folder = mkdtempSync(join(tmpdir(), 'gguf-'));
    try {
      const path = join(folder, 'model.gguf');
      await writeGguf(path, config, format, source);
      const tensors = readGguf(path);
      assert.equal(tensors.size, 2 * 9 + 3);
      const check = async (name: string, from: string, rowOf = (row: number): number => row): Promise<void> => {
        const held = tensors.get(name);
        assert(held, name);
        const [inner = 0, outputs = 0] = held.dims;
        assert.equal(held.type, type);
        const want = await tensor(from);
        assert.equal(want.length, inner * outputs);
        roundRows(format, want, inner);
        const got = decode(type, held.bytes, want.length);
        for (let row = 0; row < outputs; row++) {
          const to = rowOf(row);
          assert.deepEqual(
            got.slice(to * inner, (to + 1) * inner).map((v) => v + 0),
            [...want.subarray(row * inner, (row + 1) * inner)].map((v) => v + 0),
            `${name} row ${row}`,
          );
        }
      };
      await check('blk.1.ffn_down.weight', 'model.layers.1.mlp.down_proj.weight');
      await check('output.weight', 'lm_head.weight');
      // Halves of a head become pairs: 0, 8, 1, 9, ...
      await check('blk.0.attn_q.weight', 'model.layers.0.self_attn.q_proj.weight', (row) => {
        const at = row % 16;
        return row - at + (at < 8 ? 2 * at : 2 * (at - 8) + 1);
      });
      const norm = tensors.get('output_norm.weight');
      assert(norm && norm.type === 0);
      assert.deepEqual(decode(0, norm.bytes, 64), new Array<number>(64).fill(1));
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);

const kinds = {
  mixture: { ...config, headDim: 32, experts: { count: 4, perToken: 2 } },
  windowed: { ...config, headDim: 32, layers: 6, window: 32 },
  hybrid: {
    ...config,
    headDim: 32,
    layers: 4,
    delta: { keyHeads: 2, valueHeads: 2, keyDim: 32, valueDim: 32, taps: 4 },
  },
};
/** Tensors that are compared: our name for them in the benchmark, in the file, rows, inputs; in f32 in the file if `isFloat`. */
type Compared = readonly [from: string, to: string, outputs: number, inner: number, isFloat?: boolean];
const attention: Compared[] = [
  ['self_attn.q_proj.weight', 'self_attn.q_proj.weight', 4 * 32, 64],
  ['self_attn.o_proj.weight', 'self_attn.o_proj.weight', 64, 4 * 32],
];
const compared: Readonly<Record<keyof typeof kinds, readonly Compared[]>> = {
  mixture: [
    ...attention,
    ['mlp.gate.weight', 'block_sparse_moe.gate.weight', 4, 64, true],
    ['mlp.experts.3.down_proj.weight', 'block_sparse_moe.experts.3.w2.weight', 64, 128],
    ['mlp.experts.1.up_proj.weight', 'block_sparse_moe.experts.1.w3.weight', 128, 64],
  ],
  windowed: [...attention, ['mlp.down_proj.weight', 'mlp.down_proj.weight', 64, 128]],
  hybrid: [
    ['mlp.down_proj.weight', 'mlp.down_proj.weight', 64, 128],
    ['linear_attn.in_proj_qkv.weight', 'linear_attn.in_proj_qkv.weight', 3 * 64, 64],
    ['linear_attn.in_proj_z.weight', 'linear_attn.in_proj_z.weight', 64, 64],
    ['linear_attn.in_proj_a.weight', 'linear_attn.in_proj_a.weight', 2, 64, true],
    ['linear_attn.conv1d.weight', 'linear_attn.conv1d.weight', 3 * 64, 4, true],
    ['linear_attn.dt_bias', 'linear_attn.dt_bias', 2, 1, true],
    ['linear_attn.A_log', 'linear_attn.A_log', 2, 1, true],
    ['linear_attn.out_proj.weight', 'linear_attn.out_proj.weight', 64, 64],
  ],
};
test.each(Object.keys(kinds) as (keyof typeof kinds)[])(
  'a %s file is what our own reader takes for the same model',
  async (name) => {
    const model = kinds[name];
    const folder = mkdtempSync(join(tmpdir(), 'gguf-'));
    const weights = randomWeights(decoderProgram(shapeOfUniform(model), 64, uniformTensors), 7);
    const valuesOf = async (from: WeightSource, tensor: string, outputs: number, inner: number): Promise<number[]> => {
      const decoder = new RowDecoder();
      const values: number[] = [];
      for await (const rows of from.slices({ tensor, outputs })) values.push(...decoder.floats(rows, inner));
      return values;
    };
    try {
      const path = join(folder, 'model.gguf');
      await writeGguf(path, model, 'int8', weights);
      const opened = await openModel(path);
      const [read, wanted] = [shapeOf(opened), shapeOfUniform(model)];
      const facts = ({ layers, vocabSize, hidden }: ModelShape): unknown => [
        ...[vocabSize, hidden],
        layers.map(({ heads, kvHeads, headDim, inner, window, qkNorm, norms, experts, delta }) => ({
          heads,
          kvHeads,
          headDim,
          inner,
          window,
          qkNorm,
          norms,
          experts,
          delta: delta && { ...delta, isTiled: true },
        })),
      ];
      assert.deepEqual(facts(read), facts(wanted));
      const stored = await opened.openWeights();
      try {
        checkTensors(programOf(opened.config, read, 64), stored.shapes, path);
        for (const [from, to, outputs, inner, isFloat] of compared[name]) {
          const own = `model.layers.1.${to}`;
          const want = Float32Array.from(await valuesOf(weights, `model.layers.1.${from}`, outputs, inner));
          if (!isFloat) roundRows('int8', want, inner);
          const got = await valuesOf(stored, own, outputs, inner);
          // The file holds -e^A_log, whose logarithm is rounded once more.
          assert.deepEqual(
            from.endsWith('A_log') ? got.map((one) => Math.fround(one + 2 ** -24)) : got,
            [...want],
            own,
          );
        }
      } finally {
        await stored.close();
      }
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
);
