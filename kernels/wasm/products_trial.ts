/**
 * The trial of products: what may compute, and what computes fastest, is found by trying and never by the version of a runtime. Each
 * implementation multiplies the same random numbers, chosen at the edges, and native ones attend and normalise some too; one that does not
 * have the bits of the reference, the first of `productsKinds`, is not used. Of the others the fastest is, in a timed product.
 */
import { DeviceError } from '../device.ts';
import { isInteger } from '../weights/weight_format.ts';
import type { CompiledKernels } from './compiled_kernels.ts';
import { instantiate, type Attention, type Kernels, type Products, type RowKernels } from './kernel_exports.ts';
import { kernelsOf, productsKinds, productsOf, type ProductsCode, type ProductsKind } from './products.ts';
import type { ProductsName, ProductsWanted } from './products_names.ts';
import { TrialAttention } from './trial_attention.ts';
import { TrialRows } from './trial_rows.ts';
import { floatFormats, integerFormats, TrialProduct, type TrialShape } from './trial_product.ts';

/** A request for products, and what their trial takes from outside. */
export interface ProductsRequest {
  readonly wanted: ProductsWanted;
  /** Returns a random number, uniform in [0, 2^32); numbers of a fixed seed without it. */
  readonly random?: () => number;
  /** A steady clock; that of the machine without it, because products take real time even where a caller simulates time. */
  readonly nowMs?: () => number;
}

/** The products that a device uses, and why not others. */
export interface ProductsChoice {
  readonly name: ProductsName;
  /** The implementation, for every thread. */
  readonly code: ProductsCode;
  readonly refused: readonly { readonly name: ProductsName; readonly why: string }[];
}

/** Makes the products of an implementation; a test makes wrong ones. */
export type MakeProducts = (
  name: ProductsName,
  code: ProductsCode,
  kernels: Kernels,
  memory: WebAssembly.Memory,
) => Products;

/** Makes the other kernels of an implementation; a test makes wrong ones. */
export type MakeKernels = (
  name: ProductsName,
  code: ProductsCode,
  module: WebAssembly.Module,
  memory: WebAssembly.Memory,
) => Attention & RowKernels;

/**
 * Shapes that reach every path of the kernels: one row in four panels at once and in one, tiles of all sizes with every rest, one and two
 * blocks of the rows that AMX takes with a rest, whole and cut groups, more groups than a slice.
 */
const SHAPES: readonly TrialShape[] = [75, 549].flatMap((inner) =>
  [1, 3, 4, 7, 16, 55, 96].map((rows) => ({ rows, inner, panels: 6 })),
);
const TIMED_SHAPE: TrialShape = { rows: 96, inner: 512, panels: 8 };
const TIMED_FORMATS = ['int8', 'int4'] as const;
/** Milliseconds of the timed product, all implementations together. */
const TIMED_MS = 20;
/** Fewest and most rounds of it; the fastest round of each implementation counts, so that a pause of the machine decides nothing. */
const [MIN_ROUNDS, MAX_ROUNDS] = [3, 64];

interface Candidate {
  readonly name: ProductsName;
  readonly code: ProductsCode;
  readonly products: Products;
}

/**
 * Tries the implementations and chooses one. @throws DeviceError when `wanted` names one that this runtime does not have, or that fails
 * the trial.
 */
export function chooseProducts(
  compiled: CompiledKernels,
  { wanted, random = seeded(), nowMs = () => performance.now() }: ProductsRequest,
  make: MakeProducts = (_, code, kernels, memory) => productsOf(code, kernels, memory),
  makeKernels: MakeKernels = (_, code, module, memory) => kernelsOf(code, module, memory),
): ProductsChoice {
  const trial = new TrialProduct([...SHAPES, TIMED_SHAPE]);
  const kernels = instantiate(compiled.module, trial.memory);
  const makeIn = (name: ProductsName, code: ProductsCode): Products => make(name, code, kernels, trial.memory);
  const refused: { name: ProductsName; why: string }[] = [];
  const candidates = productsKinds.flatMap((kind) => candidateOf(kind, compiled, makeIn, refused));
  const passed = passing(candidates, trial, random, refused).filter(({ name, code }) =>
    hasKernels(name, code, compiled, makeKernels, random, refused),
  );
  const eligible = passed.filter(({ name }) => isWanted(name, wanted));
  if (eligible.length > 0) return { ...fastest(eligible, trial, random, nowMs), refused };
  const causes = refused.filter(({ name }) => isWanted(name, wanted)).map(({ why }) => why);
  const others = ['auto', ...passed.map(({ name }) => name)].join(', ');
  throw new DeviceError(
    `products ${wanted} cannot be used here: ${[...new Set(causes)].join(', ')}; use --products with one of ${others}`,
  );
}

function isWanted(name: ProductsName, wanted: ProductsWanted): boolean {
  return wanted === 'auto' || name === wanted || (wanted === 'native' && name.startsWith('native:'));
}

function candidateOf(
  { name, codeOf }: ProductsKind,
  compiled: CompiledKernels,
  make: (name: ProductsName, code: ProductsCode) => Products,
  refused: { name: ProductsName; why: string }[],
): Candidate[] {
  const code = codeOf(compiled);
  if (typeof code !== 'string') return [{ name, code, products: make(name, code) }];
  refused.push({ name, why: code });
  return [];
}

/** Returns the candidates that have the bits of the first one in every product. */
function passing(
  candidates: readonly Candidate[],
  trial: TrialProduct,
  random: () => number,
  refused: { name: ProductsName; why: string }[],
): Candidate[] {
  let left = candidates;
  for (const format of [...integerFormats, ...floatFormats]) {
    for (const shape of SHAPES) {
      trial.fill(shape, format, random);
      let expected: Uint8Array | undefined;
      left = left.filter(({ name, code, products }) => {
        // All WebAssembly implementations share the kernel of floats.
        if (expected && !isInteger(format) && !('native' in code)) return true;
        const bits = trial.multiply(products);
        expected ??= bits;
        if (Buffer.compare(bits, expected) === 0) return true;
        refused.push({ name, why: `it multiplies ${shape.rows} rows in ${format} wrongly` });
        return false;
      });
    }
  }
  return [...left];
}

/** Whether the other kernels of a candidate, of attention and rows, have the bits of the module's. */
function hasKernels(
  name: ProductsName,
  code: ProductsCode,
  { module }: CompiledKernels,
  make: MakeKernels,
  random: () => number,
  refused: { name: ProductsName; why: string }[],
): boolean {
  if (!('native' in code)) return true;
  const differenceIn = (trial: TrialAttention | TrialRows): string | undefined =>
    trial.difference(instantiate(module, trial.memory), make(name, code, module, trial.memory), random);
  const why = differenceIn(new TrialAttention()) ?? differenceIn(new TrialRows());
  if (why !== undefined) refused.push({ name, why });
  return why === undefined;
}

function fastest(
  candidates: readonly Candidate[],
  trial: TrialProduct,
  random: () => number,
  nowMs: () => number,
): Pick<Candidate, 'name' | 'code'> {
  const bestMs = candidates.length > 1 ? timesOf(candidates, trial, random, nowMs) : [0];
  const { name, code } = candidates[bestMs.indexOf(Math.min(...bestMs))]!;
  return { name, code };
}

/** Returns each candidate's time for the timed products. */
function timesOf(
  candidates: readonly Candidate[],
  trial: TrialProduct,
  random: () => number,
  nowMs: () => number,
): number[] {
  const sums = candidates.map(() => 0);
  for (const format of TIMED_FORMATS) {
    trial.fill(TIMED_SHAPE, format, random);
    const bestMs = candidates.map(() => Infinity);
    const startMs = nowMs();
    for (let round = 0; round < MAX_ROUNDS; round++) {
      if (round >= MIN_ROUNDS && nowMs() - startMs >= TIMED_MS / TIMED_FORMATS.length) break;
      candidates.forEach(({ products }, i) => {
        const fromMs = nowMs();
        trial.run(products);
        bestMs[i] = Math.min(bestMs[i]!, nowMs() - fromMs);
      });
    }
    bestMs.forEach((ms, i) => (sums[i]! += ms));
  }
  return sums;
}

/** Returns a source of random numbers that always begins alike: 32 bits, shifted and combined. */
function seeded(): () => number {
  let state = 0x9e3779b9;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

/** Returns the choice in words, for the log and for `penstock devices`; implementations refused for the same reason share it. */
export function describeProducts({ name, refused }: ProductsChoice): string {
  const byWhy = new Map<string, string[]>();
  for (const one of refused) byWhy.set(one.why, [...(byWhy.get(one.why) ?? []), one.name]);
  const others = [...byWhy].map(([why, names]) => `${names.join(' and ')}: ${why}`);
  return `products ${name}${others.length > 0 ? ` (not ${others.join(', ')})` : ''}`;
}
