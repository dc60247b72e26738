/** Files by which Linux shows a GPU, whether or not a driver for it is installed. */
import { existsSync } from 'node:fs';

/** Device files that exist when there is a GPU: of the kernel's own drivers, NVIDIA's, WSL's, and those of phones and boards. */
const CARD_FILES = [
  ...['/dev/dri', '/dev/nvidiactl', '/dev/nvidia0', '/dev/dxg'],
  ...['/dev/kgsl-3d0', '/dev/mali0', '/dev/nvgpu', '/dev/nvhost-gpu', '/dev/pvr_sync'],
];

/** Whether this machine shows a GPU by a device file; true where the system is not Linux, whose files say nothing. */
export function hasCardFile(): boolean {
  return process.platform !== 'linux' || CARD_FILES.some((file) => existsSync(file));
}
