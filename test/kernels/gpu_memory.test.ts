/** Allocations that a full device refuses; a real one cannot be filled in a test. Budget: 1 s. */
import assert from 'node:assert/strict';
import { totalmem } from 'node:os';
import { expect, test } from 'vitest';
import { GpuMemory, memoryLeft, memoryRoom, parseNvidiaMemory } from '../../kernels/wgsl/gpu_memory.ts';

/** A device with room for `bytes`, which says so as Dawn does: the error is in the scope, the buffer is returned all the same. */
function deviceWith(bytes: number): GPUDevice {
  let left = bytes;
  const scopes: ({ message: string } | null)[] = [];
  const device = {
    limits: { maxStorageBufferBindingSize: 1 << 30, maxBufferSize: 1 << 28 },
    pushErrorScope: () => scopes.push(null),
    popErrorScope: () => Promise.resolve(scopes.pop()),
    createBuffer: ({ size }: { size: number }) => {
      // The out-of-memory scope is the outer one.
      if (size > left) scopes[0] = { message: 'allocation failed' };
      else left -= size;
      return { size, destroy: () => (left += size) };
    },
  };
  return device as unknown as GPUDevice;
}

test('a full device is a clear error that says what was wanted and what is taken', async () => {
  const memory = new GpuMemory(deviceWith(3 << 20));
  await memory.allocate('weights', 'w', 2 << 20, 0);
  await expect(memory.allocate('KV blocks', 'KV of layer 3', 2 << 20, 0)).rejects.toThrow(
    'the device has no memory left for KV of layer 3: it needs 2.0 MiB, already allocated are weights 2.0 MiB (allocation failed). Use a smaller --weights',
  );
  await expect(memory.allocate('weights', 'huge', 1 << 29, 0)).rejects.toThrow(
    /huge takes 512.0 MiB.*at most 256.0 MiB/,
  );
  assert.equal(memory.totalBytes, 2 << 20);
  memory.destroy();
});

test('nvidia-smi says what the card of this name has', () => {
  const text = 'NVIDIA H200, 143771, 140000\nNVIDIA H100 80GB HBM3, 81559, 1\n';
  assert.deepEqual(parseNvidiaMemory(text, 'NVIDIA H200'), {
    totalBytes: 143_771 * 2 ** 20,
    freeBytes: 140_000 * 2 ** 20,
  });
  assert.equal(parseNvidiaMemory(text, 'NVIDIA A100'), undefined);
  assert.equal(parseNvidiaMemory('command not found', 'NVIDIA H200'), undefined);
  const alike = 'NVIDIA GeForce RTX 4060, 8188, 8000\nNVIDIA GeForce RTX 4060 Ti, 16380, 16000\n';
  const totalOf = (name: string): number => (parseNvidiaMemory(alike, name)?.totalBytes ?? 0) / 2 ** 20;
  assert.equal(totalOf('NVIDIA GeForce RTX 4060 Ti'), 16_380);
  assert.equal(totalOf('Microsoft Direct3D12 (NVIDIA GeForce RTX 4060 Ti)'), 16_380);
  assert.equal(totalOf('GeForce RTX 4060'), 8_188);
});

test('a stated budget is what is left after what is taken; engines that share an unknown card must state one', async () => {
  const listing = { backend: 'vulkan', name: 'Moore Threads S80', isSoftware: false };
  const question = { listing, takenBytes: 10, budgetBytes: 0, numSharing: 2, wantedBytes: 1e9 };
  assert.equal(await memoryLeft({ ...question, budgetBytes: 100 }), 90);
  assert.equal(await memoryLeft({ ...question, budgetBytes: 5 }), 0);
  await expect(memoryLeft(question)).rejects.toThrow(/2 engines share Moore Threads S80.*--device-memory/);
});

test('the room for a program is known before it is loaded, or endless where only filling the card would show it', async () => {
  const card = { backend: 'vulkan', name: 'Moore Threads S80', isSoftware: false };
  const software = { ...card, name: 'llvmpipe', isSoftware: true };
  const alone = { budgetBytes: 0, numSharing: 1 };
  expect(await memoryRoom(card, alone, true)).toMatchObject({ total: Infinity, free: Infinity, kv: Infinity });
  await expect(memoryRoom(card, { ...alone, numSharing: 2 }, true)).rejects.toThrow(
    /2 engines share Moore Threads S80.*--device-memory/,
  );
  assert.equal((await memoryRoom(card, { ...alone, numSharing: 2 }, false)).total, Infinity, 'nothing is to be filled');
  const { total, free, kv } = await memoryRoom(software, alone, true);
  assert(free > 0 && free <= total && total <= totalmem());
  assert.equal(kv, 512 * 2 ** 20);
  assert.equal((await memoryRoom(software, alone, false)).kv, Infinity);
  const bounded = await memoryRoom(software, { budgetBytes: 100, numSharing: 3 }, true);
  expect(bounded).toMatchObject({ total: 100, kv: Infinity });
  assert.equal((await bounded.unbounded?.())?.total, total / 3, 'the others have their parts');
  // A GPU with the machine's memory may take half of it, less a tenth, divided among its engines.
  const unified = await memoryRoom({ ...card, name: 'Apple M3' }, { ...alone, numSharing: 2 }, true);
  expect(unified).toMatchObject({ total: ((totalmem() / 2) * 0.9) / 2, free: Infinity });
});

test('a fixed number of blocks is compared with a card only where its driver does not spill into the machine', async () => {
  const roomOn = async (platform: NodeJS.Platform, name: string, isFilling: boolean): Promise<number> => {
    const memoryOf = (): Promise<{ totalBytes: number; freeBytes: number }> =>
      Promise.resolve({ totalBytes: 1_000, freeBytes: 800 });
    const question = { budgetBytes: 0, numSharing: 1, cards: { platform, memoryOf } };
    return (await memoryRoom({ backend: 'vulkan', name, isSoftware: false }, question, isFilling)).total;
  };
  assert.equal(await roomOn('linux', 'NVIDIA H100', false), 1_000);
  assert.equal(await roomOn('win32', 'NVIDIA GeForce RTX 4060', false), Infinity);
  assert.equal(await roomOn('linux', 'Microsoft Direct3D12 (NVIDIA GeForce RTX 4060)', false), Infinity);
  assert.equal(await roomOn('linux', 'AMD Radeon 780M Graphics (RADV PHOENIX)', false), Infinity);
  assert.equal(await roomOn('linux', 'AMD Radeon 780M Graphics (RADV PHOENIX)', true), 900);
  assert.equal(await roomOn('win32', 'NVIDIA GeForce RTX 4060', true), 900);
  assert.equal(await roomOn('darwin', 'Apple M3', false), totalmem());
});
