/**
 * Asks this machine's Vulkan loader for a GPU before Dawn is asked: where there is none, Dawn prints a location in its own source at
 * every start. Errors of a driver or GPU that exists are left for Dawn to print.
 */
import type { load as loadLibrary } from 'koffi';
import { hasCardFile } from './card_files.ts';

/** File name of the Vulkan loader, the one that Dawn opens. */
const LOADER = 'libvulkan.so.1';
/** Size of a VkInstanceCreateInfo in a 64-bit process, and its structure type (sType). */
const [INSTANCE_INFO_BYTES, INSTANCE_INFO] = [64, 1];
/** The loader found no driver at all. */
const VK_ERROR_INCOMPATIBLE_DRIVER = -9;

/** Returns false where Dawn would find no GPU; true where it may find one, or may have an error to print. */
export async function mayHaveCard(): Promise<boolean> {
  if (process.platform !== 'linux') return true;
  let load: typeof loadLibrary;
  try {
    ({ load } = (await import('koffi')).default);
  } catch {
    // koffi has no binary for this machine: leave the search to Dawn.
    return true;
  }
  let loader: ReturnType<typeof loadLibrary>;
  try {
    loader = load(LOADER);
  } catch {
    return false;
  }
  try {
    return hasCard(loader);
  } catch {
    // The loader does not export these functions; Dawn needs none of them, since it looks everything up by vkGetInstanceProcAddr.
    return true;
  }
}

function hasCard(loader: ReturnType<typeof loadLibrary>): boolean {
  const create = loader.func('int vkCreateInstance(void *info, void *allocator, _Out_ void **instance)');
  const enumerate = loader.func(
    'int vkEnumeratePhysicalDevices(void *instance, _Inout_ uint32_t *count, void *devices)',
  );
  const destroy = loader.func('void vkDestroyInstance(void *instance, void *allocator)');
  const info = Buffer.alloc(INSTANCE_INFO_BYTES);
  info.writeUInt32LE(INSTANCE_INFO);
  const instance: [unknown] = [null];
  const created = create(info, null, instance) as number;
  if (created !== 0) return created !== VK_ERROR_INCOMPATIBLE_DRIVER;
  try {
    const count: [number] = [0];
    if (enumerate(instance[0], count, null) === 0) return count[0] > 0;
    // Enumeration fails alike for drivers without a GPU and for broken drivers; device files tell the two cases apart.
    return hasCardFile();
  } finally {
    destroy(instance[0], null);
  }
}
