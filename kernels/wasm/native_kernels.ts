/** Native kernels (kernels/native) over one memory, with the arguments of the WebAssembly kernels: products, attention and rows of one thread. */
import type { NativeFunctions, NativeLibrary } from '../native/native_library.ts';
import type { Attention, Products, RowKernels } from './kernel_exports.ts';
import type { NativeSet } from '../native/native_sets.ts';

/** @throws Error where this thread cannot open what the device's own thread has opened */
function functionsAt(
  library: NativeLibrary | string,
  set: NativeSet,
  memory: WebAssembly.Memory,
): NativeFunctions & { readonly at: number } {
  const functions = typeof library === 'string' ? library : library.functionsOf(set);
  if (typeof library === 'string' || typeof functions === 'string')
    throw new Error(
      `native:${set} cannot be used in this thread, although the first one uses it: ${functions as string}`,
    );
  return { ...functions, at: library.addressOf(memory) };
}

/** Returns the products of a thread. @throws Error where this thread cannot open what the device's own thread has opened */
export function nativeProducts(library: NativeLibrary | string, set: NativeSet, memory: WebAssembly.Memory): Products {
  const { at, quantise, multiply, multiplyFloats, raises } = functionsAt(library, set, memory);
  return {
    quantise: (params, first, rows, quantised) => {
      quantise(at, params, first, rows, quantised, raises);
    },
    multiply: (params, quantised, first, rows, panelStart, panelEnd) => {
      multiply(at, params, quantised, first, rows, panelStart, panelEnd);
    },
    multiplyFloats: (params, first, rows, panelStart, panelEnd) => {
      multiplyFloats(at, params, first, rows, panelStart, panelEnd);
    },
  };
}

/** Returns the attention and the kernels of rows of a thread. @throws Error where this thread cannot open what the device's own thread has opened */
export function nativeKernels(
  library: NativeLibrary | string,
  set: NativeSet,
  memory: WebAssembly.Memory,
): Attention & RowKernels {
  const functions = functionsAt(library, set, memory);
  const { at, attentionTile, attentionSpan, attentionMerge, rmsNorm, siluMul, ropeStore } = functions;
  return {
    rms_norm: (...args) => {
      rmsNorm(at, ...args);
    },
    silu_mul: (...args) => {
      siluMul(at, ...args);
    },
    rope_store: (...args) => {
      ropeStore(at, ...args);
    },
    attention_tile: (...args) => {
      attentionTile(at, ...args);
    },
    attention_span: (...args) => {
      attentionSpan(at, ...args);
    },
    attention_merge: (...args) => {
      attentionMerge(at, ...args);
    },
  };
}
