/**
 * The library of native kernels that the build has compiled (config/native.js), called through koffi. Each thread opens it for itself; the
 * system maps it once. What this machine cannot use is said in a clause, and the WebAssembly kernels compute instead: nothing here throws.
 */
import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';
import type * as Koffi from 'koffi';
import type { NativeSet } from './native_sets.ts';

/** Bit of `machine_features` in machine.c, what a CPU without it lacks, and the endings of the functions that products call. */
const SETS: Readonly<Record<NativeSet, { feature: number; lacks: string; floats: 'avx2' | 'avx512'; raises: 0 | 1 }>> =
  {
    avx2: { feature: 1, lacks: 'AVX2 with FMA and F16C', floats: 'avx2', raises: 0 },
    vnni256: { feature: 2, lacks: 'AVX-VNNI', floats: 'avx2', raises: 1 },
    avx512: { feature: 4, lacks: 'AVX-512 with VNNI', floats: 'avx512', raises: 1 },
    amx: { feature: 8, lacks: 'AMX for bytes', floats: 'avx512', raises: 1 },
  };

/** A function of the library; arguments are those of its C source. */
type NativeFunction = (...args: number[]) => number;

/** Functions of one instruction set. */
export interface NativeFunctions {
  readonly quantise: NativeFunction;
  readonly multiply: NativeFunction;
  readonly multiplyFloats: NativeFunction;
  readonly attentionTile: NativeFunction;
  readonly attentionSpan: NativeFunction;
  readonly attentionMerge: NativeFunction;
  readonly rmsNorm: NativeFunction;
  readonly siluMul: NativeFunction;
  readonly ropeStore: NativeFunction;
  /** Last argument of `quantise`. */
  readonly raises: 0 | 1;
}

/** The opened library. */
export interface NativeLibrary {
  /** Returns the functions of an instruction set, or a clause that says why this machine cannot use it. */
  readonly functionsOf: (set: NativeSet) => NativeFunctions | string;
  /** Returns the address of a shared memory, which never moves. */
  readonly addressOf: (memory: WebAssembly.Memory) => number;
}

/** Name of the library for this machine, without its ending. */
const name = `${process.platform}-${process.arch}`;

/** The library in the build, opened once per thread; a clause where there is none that can be used. */
let opened: NativeLibrary | string | undefined;

/** Returns the library of the build, or a clause that says why there is none. */
export function nativeLibrary(): NativeLibrary | string {
  opened ??= openNative(new URL('./', import.meta.url));
  return opened;
}

/** Opens the library in a folder. Returns a clause where that cannot be done. */
export function openNative(folder: URL): NativeLibrary | string {
  const file = new URL(`${name}.so`, folder);
  const record = new URL(`${name}.json`, folder);
  if (!existsSync(file) || !existsSync(record)) return `the build has no native kernels for ${name}`;
  try {
    // A library that is cut short may be opened all the same, and would end the process where it misses a page.
    const { sha256 } = JSON.parse(readFileSync(record, 'utf8')) as { sha256: string };
    if (createHash('sha256').update(readFileSync(file)).digest('hex') !== sha256)
      return `${name}.so is not the library that was built: install the package anew, or run npm run build`;
    const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
    return libraryOf(koffi, koffi.load(fileURLToPath(file)));
  } catch (error) {
    return `the native kernels cannot be opened: ${(error as Error).message.split('\n')[0]}`;
  }
}

function libraryOf(koffi: typeof Koffi, library: ReturnType<typeof Koffi.load>): NativeLibrary {
  const features = (library.func('uint32_t machine_features()') as () => number)();
  const askForTiles = library.func('int amx_permission()') as () => number;
  const functionOf = (name: string, numArguments: number): NativeFunction =>
    library.func(name, 'void', ['uint64_t', ...new Array<string>(numArguments).fill('uint32_t')]) as NativeFunction;
  const open = (set: NativeSet): NativeFunctions | string => {
    const { feature, lacks, floats, raises } = SETS[set];
    if ((features & feature) === 0) return `this CPU has no ${lacks}`;
    if (set === 'amx') {
      const refused = askForTiles();
      if (refused !== 0) return `the system refuses the tiles of AMX (error ${-refused})`;
    }
    try {
      return {
        quantise: functionOf(`quantise_${floats}`, 5),
        multiply: functionOf(`multiply_${set}`, 6),
        multiplyFloats: functionOf(`multiply_floats_${floats}`, 5),
        attentionTile: functionOf(`attention_tile_${floats}`, 5),
        attentionSpan: functionOf(`attention_span_${floats}`, 7),
        attentionMerge: functionOf(`attention_merge_${floats}`, 7),
        rmsNorm: functionOf(`rms_norm_${floats}`, 3),
        siluMul: functionOf(`silu_mul_${floats}`, 5),
        ropeStore: functionOf(`rope_store_${floats}`, 3),
        raises,
      };
    } catch {
      return 'the compiler of this build did not know these instructions';
    }
  };
  const known = new Map<NativeSet, NativeFunctions | string>();
  return {
    functionsOf: (set) => {
      const functions = known.get(set) ?? open(set);
      known.set(set, functions);
      return functions;
    },
    addressOf: (memory) => Number(koffi.address(new Uint8Array(memory.buffer, 0, 1))),
  };
}
