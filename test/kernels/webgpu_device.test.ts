/**
 * Checks what surrounds the kernels on the webgpu device: adapter names, insufficient memory, device loss.
 * Under the software Vulkan driver. Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { randomWeightsOnDevice, type LoadOptions } from '../../kernels/device.ts';
import type { Program } from '../../kernels/program.ts';
import { listAdapters, openAdapter, selectAdapter } from '../../kernels/wgsl/adapters.ts';
import { matrixChoice } from '../../kernels/wgsl/matrix_units.ts';
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { findUnequalRows } from '../../kernels/wgsl/row_probe.ts';
import {
  createDeviceOn,
  createWebgpuDevice,
  type WebgpuDevice,
  type WebgpuOptions,
} from '../../kernels/wgsl/webgpu_device.ts';
import { decoderProgram } from '../../shared/engine/architectures/decoder.ts';
import { reportDevices } from '../../shared/engine/device_reports.ts';
import { autoDevice, openDevice } from '../../shared/engine/open_device.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { goldenFolder } from '../support/golden.ts';
import { useVectorWidth } from './software_gpu.ts';
import { kvLayoutFor } from '../support/kv.ts';

useVectorWidth(256, { compiles: 'fast' });
const open = (more: Partial<WebgpuOptions> = {}): Promise<WebgpuDevice> =>
  createWebgpuDevice({ adapter: 'llvmpipe', kernelSet: 'deterministic', memoryBytes: 0, ...more });

/** Opens a device whose GPU object is changed before anything is created on it. */
const openWatched = async (change: (gpu: GPUDevice) => void): Promise<WebgpuDevice> => {
  const opened = await openAdapter(selectAdapter(await listAdapters(), 'llvmpipe'));
  const requestDevice = async (descriptor: GPUDeviceDescriptor): Promise<GPUDevice> => {
    const gpu = await opened.adapter.requestDevice(descriptor);
    change(gpu);
    return gpu;
  };
  const { limits, features, info } = opened.adapter;
  const adapter = { limits, features, info, requestDevice } as unknown as GPUAdapter;
  return createDeviceOn({ ...opened, adapter }, { adapter: '', kernelSet: 'deterministic', memoryBytes: 0 });
};

const program: Program = decoderProgram(shapeOf(readModelFolder(goldenFolder('llama-tied'))), 64);
const random = randomWeightsOnDevice(1);
const options: LoadOptions = {
  maxRows: 8,
  maxSamples: 2,
  maxBlocksPerSequence: 2,
  weightFormat: 'f16',
  kv: kvLayoutFor(program.kv, 'f16'),
  numBlocks: { min: 2, max: 2 },
};
const one = { row: 2, numCandidates: 1, askedTokens: [], isFullRowWanted: false };
const batch = [{ tokens: [1, 2, 3], start: 0, blockTable: [0], samples: [one] }];

test('a name picks a software adapter, an index or nothing does not', async () => {
  const software = { backend: 'vulkan', name: 'llvmpipe (LLVM 15)', isSoftware: true };
  const card = { backend: 'vulkan', name: 'NVIDIA H200', isSoftware: false };
  const other = { backend: 'vulkan', name: 'AMD Radeon', isSoftware: false };
  const all = [software, card, other];
  assert.equal(selectAdapter(all, ''), card);
  assert.equal(selectAdapter(all, '2'), other);
  assert.equal(selectAdapter(all, 'radeon'), other);
  assert.equal(selectAdapter(all, 'LLVMPIPE'), software);
  assert.throws(() => selectAdapter(all, '0'), /adapter 0 is software.*must be named/);
  assert.throws(() => selectAdapter(all, '7'), /no WebGPU adapter 7; there are 0: llvmpipe.*2: AMD Radeon/);
  assert.throws(() => selectAdapter(all, 'tpu'), /no WebGPU adapter tpu/);
  assert.throws(() => selectAdapter([software], ''), /no hardware WebGPU adapter/);
  const xtx = { ...other, name: 'Radeon RX 7900 XTX' };
  assert.equal(selectAdapter([card, xtx], '7900'), xtx);
  assert.throws(
    () => selectAdapter([xtx, { ...other, name: 'Radeon RX 7900 XT' }], '1'),
    /cannot be told from adapter 0/,
  );
  assert.throws(() => selectAdapter([], ''), /there is none: install a Vulkan driver/);
  assert.throws(() => selectAdapter([card, { ...card }], '1'), /cannot be told from adapter 0/);
  // Windows has a card twice.
  const twice = [{ ...card, backend: 'd3d12' }, software, card];
  assert.equal(selectAdapter(twice, ''), card);
  assert.equal(selectAdapter(twice, '0'), twice[0]);
  assert.equal(selectAdapter(twice.slice(0, 2), ''), twice[0]);
  const listed = await listAdapters();
  assert(listed.some(({ name, isSoftware }) => name.includes('llvmpipe') && isSoftware));
});

test('auto takes wasm where only software adapters are, and says why; rubbish is no device', async () => {
  const hardware = (await listAdapters()).filter(({ isSoftware }) => !isSoftware);
  if (hardware.length === 0) assert.equal((await autoDevice()).device, 'wasm');
  const choice = { kernelSet: 'deterministic', deviceMemoryBytes: 0, deviceSharing: 1, numThreads: 1 } as const;
  await expect(openDevice({ ...choice, device: 'cuda' })).rejects.toThrow(/no device "cuda": use auto, wasm/);
  await expect(openDevice({ ...choice, device: 'webgpux' })).rejects.toThrow(/no device "webgpux"/);
  const [report] = await reportDevices();
  expect(report).toMatchObject({ isSoftware: true, subgroupSizes: '8 to 8', matrices: [] });
});

test('weights, blocks and buffers that do not fit are refused with the sizes, and the device lives on', async () => {
  const device = await open();
  await expect(device.load(program, random, { ...options, numBlocks: { min: 1e7, max: 1e7 } })).rejects.toThrow(
    /10000000 KV blocks of .* do not fit: one layer's buffer holds at most \d+ \(a buffer on this adapter has at most 128.0 MiB\); already allocated are weights .*/,
  );
  await expect(device.load(program, random, { ...options, maxRows: 1e7 })).rejects.toThrow(
    /takes .* MiB, but a buffer on this adapter has at most 128.0 MiB: use fewer/,
  );
  const executable = await device.load(program, random, options);
  assert.equal((await executable.run(batch)).length, 1);
  await executable.close();
  device.destroy();

  const small = await open({ memoryBytes: 1 << 20 });
  await expect(small.load(program, random, { ...options, numBlocks: { min: 4_000, max: 4_000 } })).rejects.toThrow(
    /4000 KV blocks of .* do not fit: .* are left, enough for \d+/,
  );
  small.destroy();
  const tiny = await open({ memoryBytes: 1_000 });
  await expect(tiny.load(program, random, options)).rejects.toThrow(
    /the weights take .* MiB in their storage format, but --device-memory allows 0.0 MiB: use a smaller --weights format/,
  );
  tiny.destroy();
});

test('KV blocks take what is left of a stated memory', async () => {
  const device = await open({ memoryBytes: 128 << 20 });
  const executable = await device.load(program, random, { ...options, numBlocks: { min: 2, max: 1e6 } });
  const bytes = executable.numBlocks * executable.blockBytes;
  // 80 MiB are for moving blocks.
  expect(bytes).toBeGreaterThan(40 << 20);
  expect(bytes).toBeLessThan(48 << 20);
  await executable.close();
  device.destroy();
});

test('a lost device rejects the step that runs and everything after it, with the reason', async () => {
  const device = await open();
  const executable = await device.load(program, random, options);
  const running = executable.run(batch);
  device.destroy();
  await expect(running).rejects.toThrow(/the GPU was lost/);
  assert.match(await device.lost, /destroyed/i);
  await expect(executable.run(batch)).rejects.toThrow(/the GPU was lost/);
  await expect(executable.exportBlocks([0], [new Uint8Array(executable.blockBytes)])).rejects.toThrow(/was lost/);
  await expect(device.load(program, random, options)).rejects.toThrow(/the GPU was lost/);
  // A process may open a fresh one.
  const again = await open();
  const fresh = await again.load(program, random, options);
  assert.equal((await fresh.run(batch)).length, 1);
  await fresh.close();
  again.destroy();
});

test('an error that no scope takes ends the device: a step must not return stale results', async () => {
  const device = await open();
  // More workgroups in a dimension than WebGPU allows.
  const executable = await device.load(program, random, { ...options, maxRows: 65_536, nowMs: () => 0 });
  // Once the device counts as fast, a whole step is one submit, and none of it runs.
  for (let i = 0; i < 60; i++) await executable.run(batch);
  const tokens = new Array<number>(65_536).fill(1);
  const running = executable.run([{ tokens, start: 0, blockTable: [0, 1] }]);
  await expect(
    Promise.race([
      running.then(() => device.lost.then(Promise.reject.bind(Promise))),
      device.lost.then(Promise.reject.bind(Promise)),
    ]),
  ).rejects.toMatch(/65535|65536/);
  await expect(executable.run(batch)).rejects.toThrow(/the GPU was lost/);
  await executable.close();
  device.destroy();
});

test('a step that would hold the device for long goes in several submits, and its bits are the same', async () => {
  let numSubmits = 0;
  const device = await openWatched(({ queue }) => {
    const submit = queue.submit.bind(queue);
    queue.submit = (commands) => {
      numSubmits++;
      submit(commands);
    };
  });
  let now = 0;
  const executable = await device.load(program, random, { ...options, nowMs: () => now });
  const rowOf = async (tookMs: number): Promise<{ row: Float32Array; submits: number }> => {
    numSubmits = 0;
    const running = executable.run([{ ...batch[0]!, samples: [{ ...one, isFullRowWanted: true }] }]);
    now += tookMs;
    return { row: (await running)[0]!.fullRow!, submits: numSubmits };
  };
  const whole = await rowOf(60_000);
  for (let i = 0; i < 2; i++) await rowOf(60_000);
  const cut = await rowOf(0.01);
  assert.equal(whole.submits, 1);
  expect(cut.submits).toBeGreaterThan(4);
  assert.deepEqual(cut.row, whole.row);
  expect(executable.maxRowsNow).toBeLessThan(64);
  for (let i = 0; i < 60; i++) await rowOf(0.01);
  assert.equal((await rowOf(0.01)).submits, 1);
  await executable.close();
  device.destroy();
});

test('while sequences decode nothing is encoded between a step’s results and the next one’s submit', async () => {
  let numEncoders = 0;
  const device = await openWatched((gpu) => {
    const create = gpu.createCommandEncoder.bind(gpu);
    gpu.createCommandEncoder = (more) => {
      numEncoders++;
      return create(more);
    };
  });
  const long = decoderProgram(shapeOf(readModelFolder(goldenFolder('llama-tied'))), 512);
  const numSequences = 6;
  const executable = await device.load(long, random, {
    ...options,
    maxRows: numSequences,
    maxSamples: numSequences,
    maxBlocksPerSequence: 16,
    numBlocks: { min: 16 * numSequences, max: 16 * numSequences },
    // Steps appear to take no time, so none is split.
    nowMs: () => 0,
  });
  let numInLine = 0;
  const numSteps = 150;
  for (let step = 0; step < numSteps; step++) {
    // Each passes the end of a split of attention at another step.
    const segments = Array.from({ length: numSequences }, (_, i) => ({
      tokens: [3],
      start: 100 + 40 * i + step,
      samples: [{ ...one, row: 0 }],
      blockTable: Array.from({ length: 16 }, (__, block) => 16 * i + block),
    }));
    numEncoders = 0;
    const running = executable.run(segments);
    if (numEncoders > 0) numInLine++;
    await running;
  }
  // The first: nobody knew of it.
  assert.equal(numInLine, 1);
  await executable.close();
  device.destroy();
});

test('rows whose bits depend on what is next to them are found, and the numerics class says so (E2)', async () => {
  const device = await open();
  const given = { weightFormat: 'int4', kv: { dtype: 'f16', blockSize: 32 } } as const;
  await device.checkRows(program, given);
  assert.deepEqual(device.notes, []);
  const before = device.numericsClass;
  // Simulates a compiler that reordered the sums of one kernel: only steps with this many rows get other bits.
  const load = device.load.bind(device);
  for (const [numRows, what] of [
    [1, /row 0 of a step of 1 has other bits than in a step of 134/],
    [2, /row 0 of a step of 2 has/],
    [3, /row 0 of a step of 3 has/],
    [5, /row 0 of a step of 5 has/],
    [76, /row 0 of a step of 70 \+ 5 \+ 1 has/],
  ] as const) {
    const found = await findUnequalRows(
      async (...args) => {
        const executable = await load(...args);
        const read = executable.read.bind(executable);
        executable.read = async (name, count) => {
          const values = await read(name, count);
          if (count === numRows) new Uint32Array(values.buffer)[3]! ^= 1;
          return values;
        };
        return executable;
      },
      program,
      given,
      true,
    );
    assert.match(found.unequal ?? '', what);
  }
  device.load = async (...args) => {
    const executable = await load(...args);
    executable.read = (_name, count) => Promise.resolve(new Float32Array(count * 64).fill(count));
    return executable;
  };
  await device.checkRows(program, given);
  assert.match(device.notes.join(), /E2 does not hold/);
  assert.equal(device.numericsClass, `${before}/unequal-rows`);
  assert.equal(device.fault, undefined);
  device.destroy();
  // One that computes nothing.
  const dead = await open();
  const loadThere = dead.load.bind(dead);
  dead.load = async (...args) => {
    const executable = await loadThere(...args);
    executable.read = (_name, count) => Promise.resolve(new Float32Array(count * 64));
    return executable;
  };
  await dead.checkRows(program, given);
  assert.match(dead.fault ?? '', /its results cannot be used: a layer with random weights computes mostly zeros/);
  dead.destroy();
});

test('latent attention is tried with its own kernels, with the heads of one workgroup (E2)', async () => {
  const device = await open();
  const folder = await openModel(goldenFolder('deepseek_v3'));
  const latent = programOf(folder.config, shapeOf(folder), 256);
  const given = { weightFormat: 'f16', kv: { dtype: 'f16', blockSize: 32 } } as const;
  const tried: string[] = [];
  const found = await findUnequalRows(
    (made, ...more) => {
      tried.push(...made.operations.map(({ kind }) => kind));
      return device.load(made, ...more);
    },
    latent,
    given,
    true,
  );
  assert.deepEqual(found, {});
  assert.deepEqual(tried.slice(1, 7), [
    ...['linear', 'linear', 'head_linear', 'latent_store', 'latent_attention', 'head_linear'],
  ]);
  device.destroy();
});

test('matrix configurations: which are tried, and why none is', () => {
  const f16 = { componentType: 'f16', resultComponentType: 'f32', M: 16, N: 16, K: 16 };
  const features = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix', 'subgroup-size-control'];
  const choice = (configs: readonly (typeof f16)[], [least, most]: [number, number], has = features) =>
    matrixChoice({
      listing: { backend: 'vulkan', name: 'card', isSoftware: false },
      adapter: {
        features: new Set(has),
        info: { subgroupMinSize: least, subgroupMaxSize: most },
      } as unknown as GPUAdapter,
      matrixConfigs: configs,
    });
  const [small, whole] = [
    { ...f16, M: 8, N: 8, K: 8 },
    { ...f16, resultComponentType: 'f16' },
  ];
  expect(choice([small, whole, f16], [32, 32]).uses).toEqual([
    { ...f16, subgroupSize: 32, isSizeAsked: false },
    { ...small, subgroupSize: 32, isSizeAsked: false },
  ]);
  const sizesOf = (sizes: [number, number]) =>
    choice([f16], sizes).uses.map(({ subgroupSize, isSizeAsked }) => [subgroupSize, isSizeAsked]);
  // AMD's, and Intel's.
  expect(sizesOf([32, 64])).toEqual([
    [64, true],
    [32, true],
  ]);
  expect(sizesOf([8, 32])).toEqual([
    [8, true],
    [16, true],
    [32, true],
  ]);
  expect(choice([], [32, 32])).toEqual({ uses: [], note: undefined });
  for (const [configs, sizes, has, note] of [
    [[f16], [32, 64], features.slice(0, 3), /32 to 64 lanes, and the adapter lacks the feature subgroup-size-control/],
    [[f16], [32, 32], features.slice(1), /not used: the adapter lacks the feature shader-f16/],
    [[whole], [32, 32], features, /none of its configurations/],
    [[f16], [0, 0], features, /does not say how large its subgroups are/],
  ] as const) {
    const { uses, note: had } = choice(configs, [sizes[0], sizes[1]], [...has]);
    assert.deepEqual(uses, []);
    assert.match(had ?? '', note);
  }
});

test('matrix units that do not compute what they should are left alone', async () => {
  const matrix = { componentType: 'f16', resultComponentType: 'f32', M: 16, N: 16, K: 16, subgroupSize: 8 };
  const pretendedMatrix = { ...matrix, isSizeAsked: false };
  const device = await open({ kernelSet: 'fast', pretendedMatrix });
  assert.equal(device.capabilities.matrix, undefined);
  assert.match(device.notes.join(), /matrix units are not used: f16 to f32 16×16×16 with subgroups of 8 fails/);
  const executable = await device.load(program, random, options);
  assert.equal((await executable.run(batch)).length, 1);
  await executable.close();
  device.destroy();
});
