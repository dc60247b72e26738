/**
 * The native kernels: their plain C form has the bits of the WebAssembly kernels on any machine, a fault in any of them is found by the trial
 * at load, and a library that cannot be used is refused in a clause. Needs a C compiler. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import koffi from 'koffi';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { nativeLibrary, openNative } from '../../kernels/native/native_library.ts';
import { compileKernels } from '../../kernels/wasm/compiled_kernels.ts';
import { instantiate, type Attention, type Products, type RowKernels } from '../../kernels/wasm/kernel_exports.ts';
import { nativeKernels, nativeProducts } from '../../kernels/wasm/native_kernels.ts';
import { kernelsOf, PLAIN, productsOf } from '../../kernels/wasm/products.ts';
import type { NativeSet } from '../../kernels/native/native_sets.ts';
import { chooseProducts, type MakeKernels, type MakeProducts } from '../../kernels/wasm/products_trial.ts';
import { TrialAttention } from '../../kernels/wasm/trial_attention.ts';
import { floatFormats, integerFormats, TrialProduct } from '../../kernels/wasm/trial_product.ts';
import { TrialRows } from '../../kernels/wasm/trial_rows.ts';
import { Random } from '../../shared/base/random.ts';
import { isLong } from '../support/long.ts';
import { setsHere } from '../support/native_sets.ts';
import { projectPath } from '../support/project.ts';

type CObject = readonly [source: string, set: string, flags: readonly string[]];
const { compileNative, OBJECTS } = (await import(projectPath('config/native.js'))) as {
  compileNative: (
    to: string,
    options: { sources?: string; objects?: readonly CObject[]; libraries?: readonly string[] },
  ) => Promise<void>;
  OBJECTS: readonly CObject[];
};

const sources = projectPath('kernels/native');
const kernels = compileKernels(true);
const work = mkdtempSync(join(tmpdir(), 'penstock-native-test-'));
afterAll(() => {
  rmSync(work, { recursive: true, force: true });
});

const target = `${process.platform}-${process.arch}`;
const library = nativeLibrary();
const hasLibrary = typeof library !== 'string';

/** Puts a library into a folder as the build does. */
function place(name: string, bytes: Buffer, sha256 = createHash('sha256').update(bytes).digest('hex')): URL {
  const folder = join(work, name);
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${target}.so`), bytes);
  writeFileSync(join(folder, `${target}.json`), JSON.stringify({ sha256 }));
  return pathToFileURL(`${folder}/`);
}

const builtFile = projectPath(`dist/kernels/native/${target}.so`);

describe.runIf(hasLibrary)('a library', () => {
  test('is opened as it was built', () => {
    assert.equal(typeof openNative(place('whole', readFileSync(builtFile))), 'object');
  });

  test.each<[string, (whole: Buffer) => Buffer]>([
    ['empty', () => Buffer.alloc(0)],
    ['one byte short', (whole) => whole.subarray(0, -1)],
    ['with a flipped bit', (whole) => ((whole[9_000]! ^= 1), whole)],
  ])('that is %s is not the one that was built', (name, damage) => {
    const whole = readFileSync(builtFile);
    const sha256 = createHash('sha256').update(whole).digest('hex');
    const opened = openNative(place(name, damage(whole), sha256));
    assert.equal(
      opened,
      `${target}.so is not the library that was built: install the package anew, or run npm run build`,
    );
  });

  test('for another architecture is refused by the system', () => {
    const other = readFileSync(builtFile);
    // The machine of an ELF header: arm64.
    other.writeUInt16LE(183, 18);
    expect(openNative(place('other', other))).toMatch(/^the native kernels cannot be opened: /);
  });

  test('that is missing, or without its record, is named', () => {
    assert.equal(openNative(pathToFileURL(`${work}/none/`)), `the build has no native kernels for ${target}`);
    const folder = place('unrecorded', readFileSync(builtFile));
    rmSync(new URL(`${target}.json`, folder));
    assert.equal(openNative(folder), `the build has no native kernels for ${target}`);
  });

  test('with a record that is no JSON is refused', () => {
    const folder = place('rubbish', readFileSync(builtFile));
    writeFileSync(new URL(`${target}.json`, folder), '{');
    expect(openNative(folder)).toMatch(/^the native kernels cannot be opened: /);
  });
});

/** Puts a value that is no number into the first row of a product's input, and into no other. */
function multiplyWith(value: number, trial: TrialProduct, products: Products): number[] {
  const view = new DataView(trial.memory.buffer);
  // The struct of a product is the first region, and its first field the address of the input.
  view.setFloat32(view.getUint32(FIRST_REGION, true) + 4 * 40, value, true);
  return [...new Float32Array(trial.multiply(products).buffer)];
}
/** Where MemoryPlan begins. */
const FIRST_REGION = 64;

test.each(setsHere)('native:%s makes of a NaN and of infinities what WebAssembly makes of them', (set) => {
  const random = new Random(33);
  const trial = new TrialProduct([{ rows: 3, inner: 100, panels: 6 }]);
  const reference = productsOf({ instructions: PLAIN }, instantiate(kernels.module, trial.memory), trial.memory);
  const native = nativeProducts(library, set, trial.memory);
  for (const format of [...integerFormats, ...floatFormats]) {
    for (const value of [NaN, Infinity, -Infinity]) {
      trial.fill({ rows: 3, inner: 100, panels: 6 }, format, () => random.u32());
      const expected = multiplyWith(value, trial, reference);
      assert.deepEqual(multiplyWith(value, trial, native), expected, `${format} ${value}`);
      assert(!Number.isFinite(expected[0]!) && Number.isFinite(expected.at(-1)!), `${format} ${value}`);
    }
  }
});

/** Kernels of the plain C form over a memory. */
interface PlainKernels {
  /** Products of vectors, and of tiles. */
  readonly products: readonly [Products, Products];
  readonly kernels: Attention & RowKernels;
}

function plainKernels(file: string, memory: WebAssembly.Memory): PlainKernels {
  const opened = koffi.load(file);
  const at = Number(koffi.address(new Uint8Array(memory.buffer, 0, 1)));
  const of = (name: string, numArguments: number): ((...args: number[]) => void) => {
    const types = ['uint64_t', ...new Array<string>(numArguments).fill('uint32_t')];
    const called = opened.func(name, 'void', types) as (...args: number[]) => void;
    return (...args) => {
      called(at, ...args.slice(0, numArguments));
    };
  };
  const quantise = of('quantise_plain', 5);
  const productsWith = (multiply: string): Products => ({
    quantise: (params, first, rows, quantised) => {
      quantise(params, first, rows, quantised, 1);
    },
    multiply: of(multiply, 6),
    multiplyFloats: of('multiply_floats_plain', 5),
  });
  return {
    products: [productsWith('multiply_plain'), productsWith('multiply_plain_tiles')],
    kernels: {
      attention_tile: of('attention_tile_plain', 5),
      attention_span: of('attention_span_plain', 7),
      attention_merge: of('attention_merge_plain', 7),
      rms_norm: of('rms_norm_plain', 3),
      silu_mul: of('silu_mul_plain', 5),
      rope_store: of('rope_store_plain', 3),
    },
  };
}

describe.runIf(hasLibrary)('the plain C form has the bits of WebAssembly', () => {
  const file = join(work, 'plain.so');
  beforeAll(async () => {
    const flags = ['-DISA_PLAIN', '-O1'];
    const ofSource = (source: string): CObject => [source, 'plain', flags];
    const objects = [
      ...['attention.c', 'floats.c', 'products.c', 'rows.c'].map(ofSource),
      ['machine.c', '', []] as const,
      ['products_amx.c', 'plain_tiles', flags] as const,
    ];
    await compileNative(file, { libraries: ['-lm', '-lc'], objects });
  });

  test('in products of random shapes in every format, of vectors and of tiles', () => {
    const random = new Random(31);
    const trial = new TrialProduct([{ rows: 96, inner: 700, panels: 12 }]);
    const reference = productsOf({ instructions: PLAIN }, instantiate(kernels.module, trial.memory), trial.memory);
    const forms = plainKernels(file, trial.memory).products;
    for (let i = 0; i < (isLong ? 400 : 60); i++) {
      const format = [...integerFormats, ...floatFormats][i % 7]!;
      const shape = { rows: 1 + random.below(96), inner: 1 + random.below(700), panels: 1 + random.below(12) };
      trial.fill(shape, format, () => random.u32());
      const expected = trial.multiply(reference);
      for (const [j, form] of forms.entries())
        assert(Buffer.compare(expected, trial.multiply(form)) === 0, `${j} ${format} ${JSON.stringify(shape)}`);
    }
  });

  test.each([
    ['attention', () => new TrialAttention()],
    ['kernels of rows', () => new TrialRows()],
  ])('in %s', (_, create) => {
    const random = new Random(32);
    const trial = create();
    const plain = plainKernels(file, trial.memory).kernels;
    for (let i = 0; i < (isLong ? 40 : 8); i++)
      assert.equal(
        trial.difference(instantiate(kernels.module, trial.memory), plain, () => random.u32()),
        undefined,
      );
  });
});

/** Faults: a file, what it says, and what a mutant says; one lane, one group, one correction, one rounding or one order wrong. */
const FAULTS = {
  lane: ['products.c', 'load_weights(format, w + v * VECTOR_PANELS, at, k)', 'load_weights(format, w, at, k)'],
  row: ['products.c', 'q + r * q_stride + 16 + 4 * k', 'q + (r == 3 ? 2 : r) * q_stride + 16 + 4 * k'],
  group: ['products.c', 'count > 0; count--, q', 'count > (count == 1 && at > 0); count--, q'],
  correction: ['weights.h', '1, 24, 45', '1, 25, 45'],
  begin: ['floats.c', '-raised * sum', '-raised * sum + (raised == 8)'],
  zeros: ['weights.h', '((const float *)q)[2]', '((const float *)q)[0]'],
  exponent: ['weights.h', '12, 13, 14', '12, 14, 14'],
  scale: ['weights.h', '0x1p-6f', '0x1p-5f'],
  rounding: [
    'floats.c',
    'nearest(multiply(load_floats(x + i), inverse))',
    'nearest(multiply(load_floats(x + i), add(inverse, inverse)))',
  ],
  tail: ['floats.c', 'i < inner; i++) rest', 'i + 1 < inner; i++) rest'],
  bias: ['vectors.h', '(size_t)panel * 8;', '(size_t)(panel & ~1u) * 8;'],
  halves: ['floats.c', '(size_t)k * 16', '(size_t)(k & ~1u) * 16'],
  order: [
    'attention_many.h',
    '(parts[0] + parts[1]) + (parts[2] + parts[3])',
    '(parts[0] + parts[2]) + (parts[1] + parts[3])',
  ],
  merge: ['attention.c', 'before < highest ? highest : before', 'before'],
  cap: ['attention_many.h', 'is_capped ? 1 :', 'is_capped ? 1.0001f :'],
  few: ['attention_few.h', 'exp_below_88(load(at) - highest)', 'exp_below_88(load(at) - highest + 1e-6f)'],
  norm: ['rows.c', 'sum / (float)width + epsilon', '(sum + epsilon) / (float)width'],
  rotation: ['rows.c', 'high * c + low * s', 'high * c - low * s'],
  gate: ['rows.c', 'exp_of(-x)', 'exp_of(x)'],
} as const;

describe.each(setsHere)('a fault in native:%s', (set: NativeSet) => {
  const rowSet = set === 'avx512' || set === 'amx' ? 'avx512' : 'avx2';
  const objects = OBJECTS.filter(([source, name]) => {
    if (source.startsWith('products')) return name === set || (set === 'amx' && name === 'avx512');
    return name === '' || name === rowSet;
  });
  const all = Object.keys(FAULTS) as (keyof typeof FAULTS)[];
  const tried = isLong ? all : set === setsHere.at(-1) ? all.filter((_, i) => i % 4 === 0) : ['lane' as const];

  // Dot products by signs take weights as they are, so nothing corrects them.
  test.each(tried.filter((name) => name !== 'correction' || set !== 'avx2'))(
    'is found by the trial, and the next implementation computes: %s',
    async (fault) => {
      const folder = join(work, `${set}-${fault}`);
      cpSync(sources, folder, { recursive: true });
      const [name, right, wrong] = FAULTS[fault];
      const text = readFileSync(join(folder, name), 'utf8');
      assert(text.includes(right), `${name} has no ${right}`);
      writeFileSync(join(folder, name), text.replace(right, wrong));
      const file = join(folder, 'library.so');
      await compileNative(file, { sources: folder, objects });
      const damaged = openNative(place(`${set}-${fault}-built`, readFileSync(file)));
      const make: MakeProducts = (made, code, instance, memory) =>
        made === `native:${set}` ? nativeProducts(damaged, set, memory) : productsOf(code, instance, memory);
      const makeKernels: MakeKernels = (made, code, module, memory) =>
        made === `native:${set}` ? nativeKernels(damaged, set, memory) : kernelsOf(code, module, memory);
      const random = new Random(9);
      const request = { wanted: 'auto', random: () => random.u32(), nowMs: () => 0 } as const;
      const choice = chooseProducts(kernels, request, make, makeKernels);
      const why = choice.refused.find((one) => one.name === `native:${set}`)?.why;
      expect(why).toMatch(/^(it (multiplies|attends)|its (rms_norm|silu_mul|rope_store)) /);
      assert.notEqual(choice.name, `native:${set}`);
    },
  );
});
