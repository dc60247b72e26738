/**
 * Counts cache lines and bank conflicts of 32 neighbouring lanes, from the indexes as the shaders write them. A load of 16 bytes per lane
 * takes four wavefronts of 128 bytes at best; a load whose lanes lie 128 bytes apart takes 32. Budget: 1 s.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { wgslUrl } from '../../kernels/wgsl/kernel.ts';
import { linearVariants, type Capabilities } from '../../kernels/wgsl/kernel_set.ts';
import type { WeightFormat } from '../../kernels/weights/weight_format.ts';

const LANES = 32;
const [LINE_BYTES, BANKS] = [128, 32];

type Value = bigint | readonly bigint[];
type Scope = Readonly<Record<string, Value>>;

/** The value of an index of WGSL, whose integers divide as bigints do. @throws when a name has no value. */
function valueOf(expression: string, scope: Scope): number {
  const names = Object.keys(scope);
  const body = expression.replace(/\b(\d+)u?\b/g, '$1n');
  const functions = {
    min: (a: bigint, b: bigint): bigint => (a < b ? a : b),
    select: (a: bigint, b: bigint, isB: boolean): bigint => (isB ? b : a),
  };
  // eslint-disable-next-line @typescript-eslint/no-implied-eval -- an index of our own shaders
  const evaluate = new Function(...names, ...Object.keys(functions), `return ${body};`) as (...v: unknown[]) => bigint;
  return Number(evaluate(...names.map((name) => scope[name]), ...Object.values(functions)));
}

/** Asserts that the shader contains these texts, so that the test computes the shader's own indexes. */
function assertHas(shader: string, ...texts: readonly string[]): void {
  const code = readFileSync(wgslUrl(shader), 'utf8');
  for (const text of texts) assert(code.includes(text), `${shader}.wgsl has no ${text}`);
}

/** Lines of 128 bytes that a load of the lanes touches, each lane `bytes` at `bytes` times its index; at least what its bytes fill. */
function wavefronts(indexes: readonly number[], bytes: number): number {
  const lines = new Set(indexes.map((index) => Math.floor((index * bytes) / LINE_BYTES)));
  const filled = (new Set(indexes).size * bytes) / LINE_BYTES;
  return Math.max(lines.size, Math.ceil(filled));
}

/** Turns that a load from workgroup memory takes: the most lanes that want different words of one bank. */
function bankTurns(indexes: readonly number[], words: number): number {
  const byBank = new Map<number, Set<number>>();
  for (const index of indexes) {
    for (let word = index * words; word < index * words + words; word++) {
      const bank = word % BANKS;
      byBank.set(bank, (byBank.get(bank) ?? new Set()).add(word));
    }
  }
  return Math.max(...[...byBank.values()].map(({ size }) => size));
}

const capabilities: Capabilities = {
  set: 'deterministic',
  hasSubgroups: true,
  hasF16: true,
  isSoftware: false,
  matrix: undefined,
  workgroupBytes: 32_768,
};
const formats: readonly WeightFormat[] = ['f16', 'int8', 'int4', 'uint4', 'mxfp4', 'iq4'];
const QUADS_PER_CHUNK: Readonly<Record<WeightFormat, number>> = {
  f32: 1,
  f16: 2,
  int8: 4,
  int4: 8,
  uint4: 8,
  mxfp4: 8,
  iq4: 8,
};
const quads = 4_096 / 4;

const cases = (['deterministic', 'fast'] as const).flatMap((set) =>
  formats.flatMap((format) => [14_336, 4_096, 1_024].map((outputs) => [set, format, outputs] as const)),
);

test.each(cases)('%s %s, %d outputs: loads of x and of weights', (set, format, outputs) => {
  const { byColumns } = linearVariants({ ...capabilities, set }, { format, gate: undefined, outputs }, false);
  for (const [columns, { spec, specialisation }] of byColumns) {
    const constants = specialisation.constants ?? {};
    const [ROWS, lanes] = [BigInt(constants['ROWS'] ?? 0), BigInt(constants['LANES'] ?? 0)];
    const isOrdered = spec.name === 'matvec_ordered';
    assertHas(spec.name, 'let own = thread % LANES * ROWS;', 'own_outputs(rows.base, first + own)');
    assertHas('few_rows', 'output[r] = base + min(first + r,');
    const scopeOf = (thread: number): Scope => {
      const lane = BigInt(thread);
      const own = valueOf('thread % LANES * ROWS', { thread: lane, LANES: lanes, ROWS });
      return { own: BigInt(own), at: BigInt(valueOf('thread / LANES', { thread: lane, LANES: lanes })), r: 0n };
    };
    const perChunk = BigInt(QUADS_PER_CHUNK[format]);
    const chunks = BigInt(quads) / perChunk;
    const lanesOf = (index: string, more: Scope): number[] =>
      Array.from({ length: LANES }, (_, thread) => {
        const { own, at } = scopeOf(thread) as Record<string, bigint>;
        return valueOf(index, { ...more, group: at!, chunk: at!, output: own!, chunks, perChunk });
      });
    if (isOrdered) {
      assertHas('matvec_ordered', 'for (var at = thread / LANES; at < count; at += AT_ONCE)');
      assertHas('matvec_ordered', 'let k = group * 8 + half * 4 + quad;', 'x[x_at[column] + k]');
      expect(wavefronts(lanesOf('group * 8 + half * 4 + quad', { half: 0n, quad: 0n }), 16)).toBeLessThanOrEqual(8);
    } else {
      assertHas(
        'matvec',
        'for (var chunk = thread / LANES; chunk < chunks;',
        'let at = chunk * QUADS_PER_CHUNK + quad;',
      );
      assertHas('matvec', 'loaded[r] = weight[output[r] * chunks + chunk];', 'x[x_at[column] + at]');
      expect(wavefronts(lanesOf('chunk * perChunk + quad', { quad: 0n }), 16)).toBeLessThanOrEqual(8);
    }
    // A weight is read once: of f16 a lane has a group's 64 bytes, by four loads of which the first brings the others' lines.
    const index = isOrdered ? 'output * chunks + group * 8 / perChunk' : 'output * chunks + chunk';
    const ordered = { f32: 32, f16: 16, int8: 8, int4: 4, uint4: 4, mxfp4: 4, iq4: 4 };
    // Eight outputs' lanes have half a line each.
    const most = !isOrdered ? 4 : columns === 8 ? Math.max(8, ordered[format]) : ordered[format];
    expect(wavefronts(lanesOf(index, {}), 16), `weights, ${columns} columns`).toBeLessThanOrEqual(most);
  }
});

test('attention: K and V come as whole lines, and tiles in workgroup memory have no conflicts', () => {
  const shader = 'paged_attention';
  assertHas(
    shader,
    'const K_STRIDE = K_WORDS + 1;',
    'tile[at / VECTORS * K_STRIDE + at % VECTORS * VECTOR_WORDS + word]',
  );
  assertHas(shader, 'return k_from[at / VECTORS] / VECTOR_WORDS + at % VECTORS;', 'let at = t * K_STRIDE + 2 * quad;');
  for (const headDim of [64, 128, 256]) {
    const [words, vectors] = [headDim / 2, headDim / 8];
    const threads = Array.from({ length: LANES }, (_, thread) => thread);
    // Tokens lie a whole row of KV heads apart.
    const loads = threads.map((at) => Math.floor(at / vectors) * 8 * vectors + (at % vectors));
    expect(wavefronts(loads, 16)).toBeLessThanOrEqual(4);
    // Scores: a thread a token, all of them the same part of K.
    assert.equal(
      bankTurns(
        threads.map((t) => t * (words + 1)),
        1,
      ),
      1,
    );
    // V: threads of a row of outputs read neighbouring words of one token.
    expect(
      bankTurns(
        threads.map((quad) => quad % (headDim / 4)),
        2,
      ),
    ).toBeLessThanOrEqual(2);
  }
});

test('matrix tiles: lines padded to 40 halves, eight rows of a matrix in different banks', () => {
  assertHas('matmul_subgroup_matrix', 'const LINE_QUADS = 10u;');
  // A row of 16 bytes of each of eight lines.
  assert.equal(
    bankTurns(
      Array.from({ length: 8 }, (_, row) => row * 5),
      4,
    ),
    1,
  );
});
