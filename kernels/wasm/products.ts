/**
 * Products with integer weights: one interface, several implementations that give the same bits. The dot product of a group of 32 inputs
 * is an exact integer in each of them; what follows, in f32, has one order. products_trial.ts chooses one when the device is created.
 *
 *   plain    products of i16 pairs, in every runtime with SIMD; weights of four bits are unpacked to bytes
 *   relaxed  the relaxed product of i8 by seven bits for weights of four bits; int8 and iq4 as plain
 *   dot      the relaxed dot product of four bytes, where the runtime makes it one instruction that adds all eight bits exactly (VNNI on x64
 *            from V8 of Node 24 on, a dot product on ARM); a probe tells, see instructions.as.ts
 */
import type { CompiledKernels } from './compiled_kernels.ts';
import type { Kernels } from './kernel_exports.ts';

/** Products of one thread, over one memory. Arguments are those of the kernels of the same names. */
export interface Products {
  /** Quantises rows of a product's input into the form that `multiply` reads, `Q_GROUP_BYTES` a group at most. */
  quantise(params: number, first: number, rows: number, quantised: number, last: number): void;
  /** Computes the outputs of panels [panelStart, panelEnd) for quantised rows; `scratch` has `productScratchBytes`. */
  multiply(
    params: number,
    quantised: number,
    first: number,
    rows: number,
    panelStart: number,
    panelEnd: number,
    scratch: number,
  ): void;
}

/** Names of the implementations. */
export type ProductsName = 'plain' | 'relaxed' | 'dot';

/** An implementation as the trial sees it. */
export interface ProductsKind {
  readonly name: ProductsName;
  /** Returns the code of the instructions, as instructions.as.ts has them, or a clause that says why this runtime has none. */
  readonly instructionsOf: (kernels: CompiledKernels) => number | string;
}

/** Code of the instructions that every runtime has. */
export const PLAIN = 0;
const RELAXED = 1;
/** Code of dot products of bytes where the runtime takes weights as signed. */
export const DOT_SIGNED = 3;

/** All implementations. The first is the reference for the bits of the others: every runtime has it. */
export const productsKinds: readonly ProductsKind[] = [
  { name: 'plain', instructionsOf: () => PLAIN },
  {
    name: 'relaxed',
    instructionsOf: ({ isRelaxed }) => (isRelaxed ? RELAXED : 'this runtime has no relaxed SIMD'),
  },
  {
    name: 'dot',
    instructionsOf: ({ dotInstructions }) => dotInstructions || 'this runtime has no exact dot product of bytes',
  },
];

/** Returns the products of a thread whose instance of the kernels is `kernels`. */
export function productsOf(instructions: number, kernels: Kernels): Products {
  return {
    quantise: (params, first, rows, quantised, last) => {
      kernels.quantise(params, first, rows, quantised, last, instructions);
    },
    multiply: (params, quantised, first, rows, panelStart, panelEnd, scratch) => {
      kernels.linear_int(params, quantised, first, rows, panelStart, panelEnd, scratch, instructions);
    },
  };
}
