/** Mesa's software Vulkan driver at a chosen vector width, which sets its subgroup size. */
import { projectPath } from '../support/project.ts';

/**
 * Before the driver is loaded, in this process's main thread. Each width has a cache of its own: Mesa's does not tell them apart,
 * so that a shader compiled for one would be run for another.
 */
export function useVectorWidth(bits: 128 | 256 | 512): void {
  process.env['LP_NATIVE_VECTOR_WIDTH'] = String(bits);
  process.env['MESA_SHADER_CACHE_DIR'] = projectPath(`node_modules/.cache/mesa-${bits}`);
}
