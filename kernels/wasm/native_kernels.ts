/** Native kernels (kernels/native) over one memory, with the arguments of the WebAssembly kernels: products and attention of one thread. */
import type { NativeFunctions, NativeLibrary } from '../native/native_library.ts';
import type { Attention, Products } from './kernel_exports.ts';
import type { NativeSet } from '../native/native_sets.ts';

/** @throws Error where this thread cannot open what the device's own thread has opened */
function functionsAt(
  library: NativeLibrary | string,
  set: NativeSet,
  memory: WebAssembly.Memory,
): NativeFunctions & { readonly at: number } {
  const functions = typeof library === 'string' ? library : library.functionsOf(set);
  if (typeof library === 'string' || typeof functions === 'string')
    throw new Error(`native:${set} cannot be used in this thread: ${functions as string}`);
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

/** Returns the attention of a thread. @throws Error where this thread cannot open what the device's own thread has opened */
export function nativeAttention(
  library: NativeLibrary | string,
  set: NativeSet,
  memory: WebAssembly.Memory,
): Attention {
  const { at, attentionTile, attentionSpan, attentionMerge } = functionsAt(library, set, memory);
  return {
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
