/**
 * Products: one interface, several implementations that give the same bits. With integer weights the dot product of a group of 32 inputs is
 * an exact integer in each of them; what follows, in f32, has one order. products_trial.ts chooses one when the device is created.
 *
 *   plain    products of i16 pairs, in every runtime with SIMD; weights of four bits are unpacked to bytes
 *   relaxed  the relaxed product of i8 by seven bits for weights of four bits; int8 and iq4 as plain
 *   dot      the relaxed dot product of four bytes, where the runtime makes it one instruction that adds all eight bits exactly (VNNI on x64
 *            from V8 of Node 24 on, a dot product on ARM); a probe tells, see instructions.as.ts
 *   native   C kernels of kernels/native, for every weight format and for attention, in wider instructions of the CPU: a name for each set
 */
import { nativeLibrary } from '../native/native_library.ts';
import type { CompiledKernels } from './compiled_kernels.ts';
import { instantiate, type Kernels, type Products } from './kernel_exports.ts';
import { nativeKernels, nativeProducts } from './native_kernels.ts';
import { nativeSets, type NativeSet } from '../native/native_sets.ts';
import type { ProductsName } from './products_names.ts';

/** An implementation as a thread makes it: the instructions of the WebAssembly kernels, or a set of native kernels. */
export type ProductsCode = { readonly instructions: number } | { readonly native: NativeSet };

/** An implementation as the trial sees it. */
export interface ProductsKind {
  readonly name: ProductsName;
  /** Returns what makes it, or a clause that says why this machine or runtime does not have it. */
  readonly codeOf: (kernels: CompiledKernels) => ProductsCode | string;
}

/** Code of the instructions that every runtime has, as instructions.as.ts has them. */
export const PLAIN = 0;
const RELAXED = 1;
/** Code of dot products of bytes where the runtime takes weights as signed. */
export const DOT_SIGNED = 3;

/** All implementations. The first is the reference for the bits of the others: every runtime has it. */
export const productsKinds: readonly ProductsKind[] = [
  { name: 'plain', codeOf: () => ({ instructions: PLAIN }) },
  {
    name: 'relaxed',
    codeOf: ({ isRelaxed }) => (isRelaxed ? { instructions: RELAXED } : 'this runtime has no relaxed SIMD'),
  },
  {
    name: 'dot',
    codeOf: ({ dotInstructions: instructions }) =>
      instructions === 0 ? 'this runtime has no exact dot product of bytes' : { instructions },
  },
  ...nativeSets.map((set): ProductsKind => ({
    name: `native:${set}`,
    codeOf: ({ isFused }) => (isFused ? nativeCode(set) : 'the multiply-add of this runtime rounds twice'),
  })),
];

function nativeCode(set: NativeSet): ProductsCode | string {
  const library = nativeLibrary();
  if (typeof library === 'string') return library;
  const functions = library.functionsOf(set);
  return typeof functions === 'string' ? functions : { native: set };
}

/** Returns the products of a thread whose instance of the kernels, over `memory`, is `kernels`. */
export function productsOf(code: ProductsCode, kernels: Kernels, memory: WebAssembly.Memory): Products {
  if ('native' in code) return nativeProducts(nativeLibrary(), code.native, memory);
  const { instructions } = code;
  return {
    quantise: (params, first, rows, quantised, last) => {
      kernels.quantise(params, first, rows, quantised, last, instructions);
    },
    multiply: (params, quantised, first, rows, panelStart, panelEnd, scratch) => {
      kernels.linear_int(params, quantised, first, rows, panelStart, panelEnd, scratch, instructions);
    },
    multiplyFloats: (params, first, rows, panelStart, panelEnd, scratch) => {
      kernels.linear_float(params, first, rows, panelStart, panelEnd, scratch);
    },
  };
}

/** Returns the kernels of a thread over `memory`: the module's, but for those that native products bring. */
export function kernelsOf(code: ProductsCode, module: WebAssembly.Module, memory: WebAssembly.Memory): Kernels {
  const kernels = instantiate(module, memory);
  return 'native' in code ? { ...kernels, ...nativeKernels(nativeLibrary(), code.native, memory) } : kernels;
}
