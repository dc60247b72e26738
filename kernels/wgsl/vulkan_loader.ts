/**
 * Whether this machine's Vulkan loader has a card, asked before Dawn is: where there is none, Dawn prints the place in its source that
 * noticed, at every start. What goes wrong with a driver or a card that is there stays Dawn's to print.
 */
import { existsSync } from 'node:fs';
import type { load as loadLibrary } from 'koffi';

/** The name that Dawn opens. */
const LOADER = 'libvulkan.so.1';
/** VkInstanceCreateInfo of a process of 64 bits, and the number of its kind. */
const [INSTANCE_INFO_BYTES, INSTANCE_INFO] = [64, 1];
/** The loader found no driver at all. */
const VK_ERROR_INCOMPATIBLE_DRIVER = -9;
/** Linux has these for a card: Mesa's and NVIDIA's, WSL's. */
const CARD_FILES = ['/dev/dri', '/dev/nvidiactl', '/dev/dxg'];

/** False where Dawn would find nothing; true where it may find something, or has something to say. */
export async function mayHaveCard(): Promise<boolean> {
  if (process.platform !== 'linux') return true;
  let load: typeof loadLibrary;
  try {
    ({ load } = (await import('koffi')).default);
  } catch {
    // No binary for this machine: Dawn looks itself.
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
    // A loader without these functions, which Dawn does not need: it finds all by vkGetInstanceProcAddr.
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
    // Drivers without a card fail like drivers that are broken.
    return CARD_FILES.some((file) => existsSync(file));
  } finally {
    destroy(instance[0], null);
  }
}
