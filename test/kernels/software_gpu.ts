/** Selects the GPU of the webgpu suites: Mesa's software Vulkan driver, or the real one that TEST_ADAPTER names (`npm run test:gpu`). */
import { shaderFolder } from '../support/downloads.ts';

/** Software drivers, as `TEST_DRIVER` names them (config/gpu_drivers.js): Mesa's own unless stated. */
const drivers = {
  mesa: { adapter: 'llvmpipe', subgroupSize: undefined, hasF16: true },
  /** Next to the machine's own. */
  mesa26: { adapter: 'llvmpipe', subgroupSize: undefined, hasF16: true },
  swiftshader: { adapter: 'SwiftShader', subgroupSize: 4, hasF16: false },
  /** Mesa's under the validation layer, without the guards that Dawn puts around indexes. */
  validated: { adapter: 'llvmpipe', subgroupSize: undefined, hasF16: true },
} as const;

const adapter = process.env['TEST_ADAPTER'];
const driverName = (process.env['TEST_DRIVER'] ?? 'mesa') as keyof typeof drivers;
export const driver = drivers[driverName];
export const isSoftware = adapter === undefined;
/** Whether nothing but `npm run test:drivers` runs this driver. */
export const isByHand = driverName === 'swiftshader' || driverName === 'validated';
/** Whether indexes are out of the reach of guards: a wrong one is the validation layer's to find. */
export const isUnguarded = driverName === 'validated';
/** Empty for the first hardware adapter. */
export const testAdapter = adapter ?? driver.adapter;
/** For `--device`. */
export const testDevice = testAdapter === '' ? 'webgpu' : `webgpu:${testAdapter}`;

/**
 * Chooses the vector width, and so the subgroup size, before the driver is loaded, in this process's main thread. Each width has a
 * cache of its own: Mesa's does not tell them apart, so that a shader compiled for one would be run for another.
 *
 * `compiles: 'fast'` leaves out the driver's optimisation, for suites of many kernels that run once.
 */
export function useVectorWidth(bits: 128 | 256 | 512, { compiles }: { compiles: 'fast' | 'well' }): void {
  if (!isSoftware) return;
  process.env['LP_NATIVE_VECTOR_WIDTH'] = String(bits);
  if (compiles === 'fast') process.env['GALLIVM_PERF'] = 'nopt';
  process.env['MESA_SHADER_CACHE_DIR'] = shaderFolder(`${driverName}-${bits}-${compiles}`);
}
