/**
 * Models that do not fit, with made-up memory: they are refused with the sizes before their weights are read, and with the options that
 * are named they fit. Budget: 20 s. Memory of a real GPU is in the webgpu project's tests.
 */
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DeviceError } from '../../kernels/device.ts';
import { totalNeeds, type MemoryRoom } from '../../kernels/memory_needs.ts';
import { freeMemory } from '../../kernels/wasm/memory_plan.ts';
import { createWasmDevice, type WasmBounds } from '../../kernels/wasm/wasm_device.ts';
import { memoryNeeds } from '../../kernels/wgsl/program_memory.ts';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { loadModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { LoadPlanner } from '../../shared/engine/load_plan.ts';
import { refuseWithoutRoom, type SizedDevice } from '../../shared/engine/model_fit.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { goldenFolder } from '../support/golden.ts';
import { loadDefaults } from '../support/reference_loop.ts';
import { writeSparseModel } from '../support/sparse_model.ts';

const MIB = 2 ** 20;
const GIB = 2 ** 30;

/** Returns the options with those that a refusal names. */
function withNamed(options: LoadModelOptions, message: string): LoadModelOptions {
  const [, flags = ''] = /it fits with (--.+)$/.exec(message) ?? [];
  const named = Array.from(flags.matchAll(/--([\w-]+) (\S+)/g), ([, name, value]): object => {
    if (name === 'weights') return { weightFormat: value };
    if (name === 'max-model-len') return { maxModelLen: Number(value) };
    if (name === 'kv-blocks') return { numBlocks: Number(value) };
    if (name === 'chunk-tokens') return { chunkTokens: Number(value) };
    if (name === 'state-slots') return { numStateSlots: Number(value) };
    const [, count, unit] = /^([\d.]+)(MiB|GiB)$/.exec(value ?? '') ?? [];
    assert(name === 'device-memory' && unit !== undefined, `${name} ${value}`);
    return { deviceMemoryBytes: Number(count) * (unit === 'MiB' ? MIB : GIB) };
  });
  assert(named.length > 0, message);
  return Object.assign({}, options, ...named) as LoadModelOptions;
}

describe('on wasm', () => {
  const load = async (options: LoadModelOptions, wasmBounds: WasmBounds): Promise<number> => {
    const { executable } = await loadModel({ ...options, wasmBounds });
    await executable.close();
    return executable.memoryBytes ?? NaN;
  };

  test.each([
    ['llama-odd', {}],
    ['qwen3_5', {}],
    ['llama-tied', { numThreads: 2, weightFormat: 'f32', numBlocks: 7 }],
    ['qwen3-moe', { wasmBounds: { maxMemoryBytes: 4 * MIB } }],
  ] as const)('%s needs what it then takes, and is refused with a byte less', async (name, more) => {
    const options: LoadModelOptions = { ...loadDefaults, modelPath: goldenFolder(name), numBlocks: 64, ...more };
    const bounds = options.wasmBounds ?? {};
    const takenBytes = await load(options, bounds);
    const folder = await openModel(options.modelPath);
    const device = createWasmDevice(options.numThreads, true, 1, bounds);
    const weights = await folder.openWeights();
    const planner = new LoadPlanner({ folder, shape: shapeOf(folder), weights, device });
    const { held, load: planned } = planner.plan(options);
    await weights.close();
    const needs = device.needs(held.program, planned);
    // Memories are whole pages.
    expect(takenBytes - totalNeeds(needs)).toBeGreaterThanOrEqual(0);
    expect(takenBytes - totalNeeds(needs)).toBeLessThan(20 * 65_536);
    assert.equal(await load(options, { ...bounds, machineBytes: totalNeeds(needs) }), takenBytes);
    await expect(load(options, { ...bounds, machineBytes: totalNeeds(needs) - 1 })).rejects.toThrow(
      /^the model does not fit: weights take .* and this machine has .* MiB; it fits with --/,
    );
  });

  test.each([
    ['llama-odd', { numBlocks: 0 }, 20, /--kv-blocks \d+$/],
    ['llama-odd', { weightFormat: 'f32', numBlocks: 32 }, 1.8, /--weights \w+$/],
    ['llama-odd', { weightFormat: 'f32', numBlocks: 32 }, 1.6, /--weights \w+ --kv-blocks \d+$/],
    ['qwen3_5', { numBlocks: 16, numStateSlots: 4_000 }, 24, /--state-slots \d+$/],
    [
      'qwen3_5',
      { numBlocks: 2_000, numStateSlots: 4_000 },
      24,
      /--kv-blocks \d+ --state-slots \d+|--state-slots \d+ --kv-blocks \d+$/,
    ],
  ] as const)('%s with %j in %d MiB loads with what is named', async (name, more, mib, pattern) => {
    const options: LoadModelOptions = { ...loadDefaults, modelPath: goldenFolder(name), chunkTokens: 64, ...more };
    const bounds = { machineBytes: mib * MIB };
    const refused = await load(options, bounds).then(
      () => assert.fail('it fits'),
      (error: unknown) => error,
    );
    assert(refused instanceof DeviceError);
    expect(refused.message).toMatch(pattern);
    expect(await load(withNamed(options, refused.message), bounds)).toBeLessThan(mib * MIB + 65_536);
  });

  test.each([
    ['llama-odd', { numBlocks: 40_000 }, /--kv-blocks \d+$/],
    ['qwen3_5', { numBlocks: 16, numStateSlots: 4_000 }, /--state-slots \d+$/],
  ] as const)('%s with %j, a layer of which no memory holds, loads with what is named', async (name, more, pattern) => {
    const options: LoadModelOptions = { ...loadDefaults, modelPath: goldenFolder(name), chunkTokens: 64, ...more };
    const bounds = { maxMemoryBytes: 8 * MIB };
    const refused: unknown = await load(options, bounds).catch((error: unknown) => error);
    assert(refused instanceof DeviceError, 'it fits');
    expect(refused.message).toMatch(
      /and a memory of the wasm device has at most 8\.0 MiB, and a part .*; it fits with --/,
    );
    expect(refused.message).toMatch(pattern);
    expect(await load(withNamed(options, refused.message), bounds)).toBeGreaterThan(0);
  });

  test('weights that other processes leave no memory for are refused; files in memory count as free', async () => {
    const options: LoadModelOptions = { ...loadDefaults, modelPath: goldenFolder('llama-tied'), weightFormat: 'f32' };
    await expect(load(options, { freeBytes: 1_000 })).rejects.toThrow(
      /and only 0\.0 MiB are free at the moment \(try again when other programs have ended\); no smaller weights, context or steps make it fit: the least that it takes is .*; free some memory, or use a smaller model/,
    );
    const meminfo =
      'MemTotal:  16000 kB\nMemFree:  100 kB\nAnonPages:  4000 kB\nCached: 9000 kB\nShmem: 1000 kB\nSwapFree:  500 kB\n';
    assert.equal(freeMemory(meminfo), 11_500 * 1_024);
    assert.equal(freeMemory(`${meminfo}SwapCached: 300 kB\n`), 11_800 * 1_024, 'pages both in memory and in swap');
    const wrapped = 'MemTotal: 16000 kB\nAnonPages: 18446744073709551000 kB\nShmem: 1000 kB\n';
    assert.equal(freeMemory(wrapped), Infinity);
    assert.equal(freeMemory('MemTotal: 16000 kB\n'), Infinity);
    assert.equal(freeMemory(undefined), Infinity);
  });

  test('engines that share the machine each have a part of it', async () => {
    const options: LoadModelOptions = { ...loadDefaults, modelPath: goldenFolder('llama-tied'), deviceSharing: 1_000 };
    await expect(load(options, { machineBytes: 64 * MIB })).rejects.toThrow(
      /and each of 1000 engines on this machine may have 0\.1 MiB; no smaller weights, context or steps make it fit: .* with --weights int4 --chunk-tokens 128 --kv-blocks 8; use/,
    );
  });
});

describe('8 billion parameters on a GPU', () => {
  const folder = temporaryFolder();
  const options: LoadModelOptions = {
    ...loadDefaults,
    modelPath: folder.path,
    device: 'webgpu',
    numBlocks: 0,
    maxNumSeqs: 64,
    chunkTokens: 512,
  };
  let planner: LoadPlanner;
  const plannerOf = async (maxPositions: number): Promise<LoadPlanner> => {
    const sizes = { layers: 32, hidden: 4_096, heads: 32, kvHeads: 8, inner: 14_336, vocab: 128_256 };
    const path = join(folder.path, `${maxPositions}`);
    mkdirSync(path);
    writeSparseModel(path, { ...sizes, maxPositions, numFiles: 2 });
    const model = await openModel(path);
    const weights = await model.openWeights();
    await weights.close();
    return new LoadPlanner({ folder: model, shape: shapeOf(model), weights, device: { kind: 'webgpu' } });
  };
  beforeAll(async () => {
    planner = await plannerOf(131_072);
  });
  afterAll(() => {
    folder.remove();
  });

  const deviceWith = (room: Partial<MemoryRoom>, maxBytes = 4 * GIB): SizedDevice => ({
    kind: 'webgpu',
    needs: (program, load) => memoryNeeds(program, load, { isSoftware: false, maxBytes }),
    room: () => Promise.resolve({ total: Infinity, free: Infinity, kv: Infinity, whose: 'the card leaves', ...room }),
  });
  const refusal = async (more: Partial<LoadModelOptions>, device: SizedDevice, of = planner): Promise<string> => {
    const error: unknown = await refuseWithoutRoom(of, { ...options, ...more }, device).catch(
      (error: unknown) => error,
    );
    assert(error instanceof DeviceError, error instanceof Error ? error.message : 'it fits');
    return error.message;
  };

  test('the sizes are those of its shape', async () => {
    const message = await refusal({}, deviceWith({ total: 20 * GIB }));
    // 7.50 billion values of matrices and 0.53 billion of the embedding; 128 KiB of KV for a token.
    expect(message).toMatch(
      /^the model does not fit: weights take 15\.0 GiB as f16, KV of one sequence of 131072 tokens 16\.0 GiB, other buffers \d+\.\d MiB, all together 31\.\d GiB, and the card leaves 20\.0 GiB; it fits with --max-model-len \d+$/,
    );
  });

  test.each([
    ['a shorter context rather than smaller weights', {}, { total: 24 * GIB }, /with --max-model-len 6\d{4}$/],
    ['smaller weights and a shorter context', {}, { total: 12 * GIB }, /with --weights int8 --max-model-len 2\d{4}$/],
    ['the smallest weights', {}, { total: 6 * GIB }, /with --weights int4 --max-model-len \d{4}$/],
    ['smaller weights alone', { maxModelLen: 8_192 }, { total: 10 * GIB }, /with --weights int8$/],
    ['fewer blocks where their number is given', { numBlocks: 9_000 }, { total: 40 * GIB }, /with --kv-blocks 6\d{3}$/],
    [
      'KV that is bounded for itself',
      {},
      { kv: 512 * MIB },
      /KV may take 512\.0 MiB on this device; it fits with --max-model-len 4096$/,
    ],
    [
      'what is free now',
      { maxModelLen: 8_192 },
      { total: 80 * GIB, free: 9 * GIB },
      /only 9\.0 GiB are free at the moment \(try again when other programs have ended\); it fits with --weights int8$/,
    ],
    [
      'smaller steps where their buffers take too much',
      { chunkTokens: 8_192 },
      { total: 6 * GIB },
      /with --chunk-tokens 512 --weights int4 --max-model-len \d+$/,
    ],
  ] as const)('%s', async (_, more, room, pattern) => {
    const device = deviceWith(room);
    const message = await refusal(more, device);
    expect(message).toMatch(pattern);
    await refuseWithoutRoom(planner, withNamed({ ...options, ...more }, message), device);
  });

  test('the context that is named is the longest that fits, to a few blocks', async () => {
    const device = deviceWith({ total: 24 * GIB });
    const { maxModelLen } = withNamed(options, await refusal({}, device));
    // Tables of angles and of blocks grow with the context too.
    await refusal({ maxModelLen: Math.ceil(maxModelLen * 1.02) }, device);
  });

  test('a larger part of the device where the stated one is too small, unless the device has no more', async () => {
    const bounded = (total: number): SizedDevice => ({
      ...deviceWith({}),
      room: () =>
        Promise.resolve({
          total: 16 * GIB,
          free: Infinity,
          kv: Infinity,
          whose: '--device-memory allows',
          unbounded: () => Promise.resolve({ total, free: total, kv: Infinity, whose: 'the card leaves' }),
        }),
    });
    const message = await refusal({}, bounded(72 * GIB));
    expect(message).toMatch(/--device-memory allows 16\.0 GiB; it fits with --device-memory 3\d(\.\d)?GiB$/);
    const { deviceMemoryBytes } = withNamed(options, message);
    await refuseWithoutRoom(planner, options, deviceWith({ total: deviceMemoryBytes }));
    expect(await refusal({}, bounded(24 * GIB))).toMatch(/it fits with --weights int8 --max-model-len \d+$/);
    // Nothing is named where only filling the card would show its memory.
    expect(await refusal({}, bounded(Infinity))).toMatch(/it fits with --weights int8 --max-model-len \d+$/);
  });

  test('a buffer that is too small for a layer is a reason of its own', async () => {
    const device = deviceWith({}, 128 * MIB);
    const message = await refusal({}, device);
    expect(message).toMatch(
      /a buffer of this adapter holds a layer's KV of 32768 tokens; it fits with --max-model-len 32768$/,
    );
    await refuseWithoutRoom(planner, withNamed(options, message), device);
  });

  test('where nothing helps, the least memory is said', async () => {
    expect(await refusal({}, deviceWith({ total: 2 * GIB }))).toMatch(
      /no smaller weights, context or steps make it fit: the least that it takes is 4\.\d GiB, with --weights int4 --chunk-tokens 128 --max-model-len 256; use a smaller model or a device with more memory$/,
    );
    // A step has a row for each sequence, so fewer tokens in it change nothing.
    expect(await refusal({ maxNumSeqs: 512 }, deviceWith({ total: 2 * GIB }))).toMatch(
      /with --weights int4 --max-model-len 256; use/,
    );
    expect(await refusal({}, deviceWith({ total: 80 * GIB, free: 2 * GIB }))).toMatch(
      /; free some memory, or use a smaller model or a device with more memory$/,
    );
  });

  test('a context shorter than the least that is tried is not made longer', async () => {
    const short = await plannerOf(500);
    expect(await refusal({ blockSize: 1_024 }, deviceWith({ total: 2 * GIB }), short)).toMatch(
      /the least that it takes is 5\.\d GiB, with --weights int4 --chunk-tokens 128; use/,
    );
  });

  test('all loads that are tried are compared with the memory of one moment', async () => {
    let numAsked = 0;
    const device = deviceWith({ total: 12 * GIB });
    const { room } = device;
    const message = await refusal({}, { ...device, room: (numBlocks) => (numAsked++, room(numBlocks)) });
    expect(message).toMatch(/it fits with --weights int8/);
    assert.equal(numAsked, 1);
  });
});
