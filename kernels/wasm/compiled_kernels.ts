/**
 * The kernels' module: with relaxed SIMD where the runtime has it, plain SIMD otherwise.
 *
 * Node 20 has relaxed SIMD behind a V8 flag, which can be set at run time before the first module that needs it is compiled. Later
 * versions have it without a flag.
 */
import { readFileSync } from 'node:fs';
import { setFlagsFromString } from 'node:v8';
import { instantiate } from './kernel_exports.ts';

/** The compiled kernels and the capabilities that were found when they were compiled. */
export interface CompiledKernels {
  readonly module: WebAssembly.Module;
  readonly isRelaxed: boolean;
  /** Code of the instructions that add dot products of four bytes exactly, see instructions.as.ts; 0 where there are none. */
  readonly dotInstructions: number;
  /** Whether a multiply-add rounds once. The CPU decides, so the kernel `is_fused` measures it. */
  readonly isFused: boolean;
}

/** Compiled kernels of this thread, by `mayRelax`: a thread with several devices or row samplers compiles once. */
const compiled = new Map<boolean, CompiledKernels>();

/** Returns the compiled kernels, cached per thread. Plain SIMD when `mayRelax` is false or the runtime has no relaxed SIMD. */
export function compileKernels(mayRelax: boolean): CompiledKernels {
  const kernels = compiled.get(mayRelax) ?? compile(mayRelax);
  compiled.set(mayRelax, kernels);
  return kernels;
}

function compile(mayRelax: boolean): CompiledKernels {
  const relaxed = mayRelax ? readKernels('kernels_relaxed.wasm') : undefined;
  const isRelaxed = relaxed !== undefined && canCompile(relaxed);
  const module = compileOptimised(isRelaxed ? relaxed : readKernels('kernels.wasm'));
  const memory = new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true });
  const kernels = instantiate(module, memory);
  return { module, isRelaxed, dotInstructions: kernels.dot_instructions(64), isFused: kernels.is_fused(64) === 1 };
}

function readKernels(file: string): Uint8Array {
  return readFileSync(new URL(`./${file}`, import.meta.url));
}

/** First major version of V8 whose optimising compiler needs the feedback of the first tier to inline (Node 25). */
const V8_INLINES_BY_FEEDBACK = 14;

/**
 * Compiles with V8's optimising compiler at once, which takes 20 ms. By default V8 starts every function in a tier that is three times
 * slower and replaces it after a while. Both flags are restored, so modules compiled later are not affected.
 *
 * V8 from version 14 on inlines by feedback that only its first tier collects, and ends the process where that feedback is missing
 * (`Check failed: function_feedback != feedback.feedback_for_function.end()`, Node 26). Inlining stays off there: a module that another
 * thread compiles at the same time lacks the feedback too. AssemblyScript's compiler has inlined what is worth it.
 */
function compileOptimised(bytes: Uint8Array): WebAssembly.Module {
  if (v8Major() >= V8_INLINES_BY_FEEDBACK) setFlagsFromString('--no-wasm-inlining');
  const flags = ['liftoff', 'wasm-lazy-compilation'];
  for (const flag of flags) setFlagsFromString(`--no-${flag}`);
  try {
    return new WebAssembly.Module(bytes);
  } finally {
    for (const flag of flags) setFlagsFromString(`--${flag}`);
  }
}

function v8Major(): number {
  return Number(process.versions.v8.split('.')[0]);
}

function canCompile(bytes: Uint8Array): boolean {
  if (WebAssembly.validate(bytes)) return true;
  if (!process.versions.node.startsWith('20.')) return false;
  setFlagsFromString('--experimental-wasm-relaxed-simd');
  return WebAssembly.validate(bytes);
}
