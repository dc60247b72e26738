/** Which GPU the webgpu suites run on: Mesa's software Vulkan driver, or with TEST_ADAPTER a real one (`npm run test:gpu`). */
import { projectPath } from '../support/project.ts';

const adapter = process.env['TEST_ADAPTER'];
/** Of the software driver: 26 where a suite runs beside the machine's own Mesa (config/gpu_drivers.js). */
const driver = process.env['TEST_DRIVER'] ?? 'mesa';
export const isSoftware = adapter === undefined;
/** Empty for the first hardware adapter. */
export const testAdapter = adapter ?? 'llvmpipe';
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
  process.env['MESA_SHADER_CACHE_DIR'] = projectPath(`node_modules/.cache/${driver}-${bits}-${compiles}`);
}
