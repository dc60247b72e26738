/**
 * Products with integer weights: all implementations have the same bits, and what does not is refused by the trial. Speed is not measured
 * here: the clocks are made. Budget: 25 s.
 */
import assert from 'node:assert/strict';
import { describe, expect, test } from 'vitest';
import type { Segment } from '../../kernels/device.ts';
import { noKv } from '../../kernels/kv_layout.ts';
import { compileKernels } from '../../kernels/wasm/compiled_kernels.ts';
import type { Products } from '../../kernels/wasm/kernel_exports.ts';
import { DOT_SIGNED, productsKinds, productsOf } from '../../kernels/wasm/products.ts';
import type { ProductsName } from '../../kernels/wasm/products_names.ts';
import { chooseProducts, describeProducts, type MakeProducts } from '../../kernels/wasm/products_trial.ts';
import { createWasmDevice, type WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { floatRows } from '../../kernels/weights/stored_rows.ts';
import { weightFormats, type WeightFormat } from '../../kernels/weights/weight_format.ts';
import { Random } from '../../shared/base/random.ts';
import { goldenFolder } from '../support/golden.ts';
import { isLong } from '../support/long.ts';
import { loadDefaults, logitsOf } from '../support/reference_loop.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import { mutantsOf } from './damaged_kernels.ts';

const kernels = compileKernels(true);
const offered = productsKinds.filter(({ codeOf }) => typeof codeOf(kernels) !== 'string');
const names = offered.map(({ name }) => name);
const seeded = (): (() => number) => {
  const random = new Random(5);
  return () => random.u32();
};
/** A clock that stands: nothing is faster than anything else. */
const standing = { random: seeded(), nowMs: () => 0 };

interface Shape {
  readonly format: WeightFormat;
  readonly rows: number;
  readonly inner: number;
  readonly outputs: number;
  readonly isAccumulating: boolean;
  readonly hasBias: boolean;
  readonly scale: number;
}

function shapeOf(random: Random): Shape {
  return {
    format: weightFormats[random.below(weightFormats.length)]!,
    rows: random.chance(1, 4) ? 1 + random.below(8) : 1 + random.below(200),
    inner: 1 + random.below(random.chance(1, 4) ? 3_000 : 700),
    outputs: 1 + random.below(600),
    isAccumulating: random.chance(1, 2),
    hasBias: random.chance(1, 2),
    scale: random.chance(1, 2) ? 1 : 0.375,
  };
}

function noise(random: Random, length: number): Float32Array {
  const values = new Float32Array(length);
  for (let i = 0; i < length; i++) values[i] = random.u32() / 2 ** 31 - 1;
  return values;
}

/** Input, weights, bias and earlier output of a product. */
interface Numbers {
  readonly x: Float32Array;
  readonly w: Float32Array;
  readonly b: Float32Array;
  readonly out: Float32Array;
}

async function bitsOf(shape: Shape, numbers: Numbers, wanted: ProductsName): Promise<Buffer> {
  const { format, rows, inner, outputs, isAccumulating, hasBias, scale } = shape;
  const device = createWasmDevice(1, true, 1, {}, { wanted });
  const executable = await device.load(
    {
      operations: [
        {
          kind: 'linear',
          x: 'x',
          weight: 'w',
          out: 'out',
          accumulate: isAccumulating,
          scale,
          ...(hasBias ? { bias: 'b' } : {}),
        },
      ],
      buffers: { x: { rows: 'rows', width: inner }, out: { rows: 'rows', width: outputs } },
      weights: {
        w: { outputs, inner, parts: [{ tensor: 'w', outputs }] },
        ...(hasBias ? { b: { outputs, inner: 1, parts: [{ tensor: 'b', outputs }] } } : {}),
      },
      kv: [],
      rope: {},
    },
    {
      async *slices({ tensor }) {
        // Packing rounds in place.
        yield await Promise.resolve(floatRows(numbers[tensor as 'w' | 'b'].slice()));
      },
    },
    {
      maxRows: rows,
      maxSamples: 1,
      maxBlocksPerSequence: 7,
      weightFormat: format,
      kv: noKv,
      numBlocks: { min: 7, max: 7 },
    },
  );
  await executable.write('x', numbers.x);
  await executable.write('out', numbers.out);
  const segment: Segment = { tokens: new Array<number>(rows).fill(0), start: 0, blockTable: [0, 1, 2, 3, 4, 5, 6] };
  await executable.run([segment]);
  const out = await executable.read('out', rows);
  await executable.close();
  return Buffer.from(out.buffer);
}

test('every implementation multiplies random shapes in every format with the same bits', async () => {
  const random = new Random(54);
  for (let i = 0; i < (isLong ? 1_000 : 100); i++) {
    const shape = shapeOf(random);
    const { rows, inner, outputs } = shape;
    const numbers = {
      x: noise(random, rows * inner),
      w: noise(random, outputs * inner),
      b: noise(random, outputs),
      out: noise(random, rows * outputs),
    };
    const [first, ...others] = names;
    const expected = await bitsOf(shape, numbers, first!);
    for (const name of others)
      assert(expected.equals(await bitsOf(shape, numbers, name)), `${name} differs: ${JSON.stringify(shape)}`);
  }
});

/** Makes products like the kernels', but those of `name` through `change`. */
const changed =
  (name: ProductsName, change: (right: Products, memory: Buffer) => Products): MakeProducts =>
  (made, code, kernels, memory) => {
    const right = productsOf(code, kernels, memory);
    return made === name ? change(right, Buffer.from(memory.buffer)) : right;
  };

describe('the trial', () => {
  test('chooses among what the runtime has, and says what it has not', () => {
    assert(names.includes(chooseProducts(kernels, { wanted: 'auto', ...standing }).name));
    const plain = chooseProducts(compileKernels(false), { wanted: 'auto', ...standing });
    assert.equal(plain.name, 'plain');
    assert.match(describeProducts(plain), /^products plain \(not relaxed: this runtime has no relaxed SIMD/);
  });

  test.each(names)('takes %s where it is named', (name) => {
    assert.equal(chooseProducts(kernels, { wanted: name, ...standing }).name, name);
  });

  test.each(names)('takes %s where it is the fastest', (fast) => {
    let ms = 0;
    const make: MakeProducts = (name, ...of) => {
      const right = productsOf(...of);
      return {
        ...right,
        multiply: (...args) => {
          ms += name === fast ? 1 : 2;
          right.multiply(...args);
        },
      };
    };
    const request = { wanted: 'auto', random: seeded(), nowMs: () => ms } as const;
    assert.equal(chooseProducts(kernels, request, make).name, fast);
  });

  test('refuses what a runtime does not have, and says what there is', () => {
    const choose = (): unknown => chooseProducts(compileKernels(false), { wanted: 'relaxed', ...standing });
    expect(choose).toThrow(
      'products relaxed cannot be used here: this runtime has no relaxed SIMD; use --products with one of auto, plain',
    );
  });

  /** Functions that this machine computes products with: not those that measure it, nor those for the other kind of dot product. */
  const isUsed = (name: string): boolean => {
    if (name.startsWith('multiply_add_loop') || name === 'dot_instructions') return false;
    const isSigned = name.endsWith('_signed');
    const hasBoth = isSigned || name.endsWith('int8') || name.endsWith('iq4');
    return !name.startsWith('dot_') || !hasBoth || isSigned === (kernels.dotInstructions === DOT_SIGNED);
  };

  test.each(names.filter((name) => name === 'relaxed' || name === 'dot'))(
    'refuses %s when any of its instructions is wrong, and the engine serves with the next',
    async (name) => {
      const mutants = mutantsOf(name, isUsed);
      assert(mutants.length >= 20, `${mutants.length} instructions`);
      const tokens = Array.from({ length: 40 }, (_, i) => (i * 37) % 250);
      const logits = async (wasmBounds: WasmBounds): Promise<Float32Array> => {
        const options = { ...loadDefaults, modelPath: goldenFolder('llama-odd'), weightFormat: 'int4' } as const;
        const { executable, description } = await loadModel({ ...options, products: 'auto', wasmBounds });
        const row = await logitsOf(executable, tokens);
        await executable.close();
        if (wasmBounds.kernels) assert.match(description, new RegExp(`${name}: it multiplies`));
        return row;
      };
      const right = await logits({});
      // All of them in the long run, else some, of all functions.
      const step = isLong ? 1 : Math.ceil(mutants.length / 8);
      for (let i = 0; i < mutants.length; i += step) {
        const damaged = { ...kernels, module: mutants[i]!() };
        const choice = chooseProducts(damaged, { wanted: 'auto', ...standing });
        const why = choice.refused.find((one) => one.name === name)?.why;
        assert(why?.startsWith('it multiplies'), `mutant ${i} of ${name} is not refused`);
        assert.notEqual(choice.name, name);
        if (i === 0) assert.deepEqual(await logits({ kernels: damaged }), right);
      }
    },
  );

  // A single bit of one output is wrong, and only with that number of rows.
  test.each(names.slice(1).flatMap((name) => [1, 96].map((rows) => [name, rows] as const)))(
    'refuses %s with one wrong bit in a product of %i rows, and the others compute',
    (name, wrongRows) => {
      const make = changed(name, (right, memory) => ({
        ...right,
        multiply: (params, quantised, first, rows, ...rest) => {
          right.multiply(params, quantised, first, rows, ...rest);
          const out = memory.readUInt32LE(params + 20);
          if (rows === wrongRows) memory[out + 36]! ^= 1;
        },
      }));
      const choice = chooseProducts(kernels, { wanted: 'auto', ...standing }, make);
      assert.notEqual(choice.name, name);
      assert.match(describeProducts(choice), new RegExp(`${name}: it multiplies ${wrongRows} rows in int8 wrongly`));
      expect(() => chooseProducts(kernels, { wanted: name, ...standing }, make)).toThrow(
        /cannot be used here: it multi/,
      );
    },
  );
});
