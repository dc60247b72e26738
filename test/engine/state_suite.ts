/**
 * Recurrent states of whole models, on one device: they are those of the reference implementation after 64 and 128 tokens, saved in the
 * middle of a step or at its end, and a sequence that goes on from an exported state has the bits of one that never stopped (E2).
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import type { Executable, SegmentState } from '../../kernels/device.ts';
import type { StateLayout } from '../../kernels/state_layout.ts';
import type { LoadedModel } from '../../shared/engine/load_model.ts';
import type { LoadModelOptions } from '../../shared/engine/load_options.ts';
import { stateLayoutOf } from '../../shared/engine/program_kv.ts';
import { goldenCases, goldenFolder, maxAbs } from '../support/golden.ts';
import { loadReference } from '../support/reference_loop.ts';

/** Largest error of a value, as a share of the largest. */
const BOUND = 1e-4;

interface StoredArray {
  readonly offset: number;
  readonly shape: readonly number[];
}

/** The states in a golden.json: `conv` [channels, kernel] with the newest input last, `recurrent` as devices have it. */
interface GoldenStates {
  readonly case: number;
  readonly layer: number;
  readonly after: readonly { readonly tokens: number; readonly conv: StoredArray; readonly recurrent?: StoredArray }[];
}

function goldenStates(name: string): GoldenStates {
  return (JSON.parse(readFileSync(`${goldenFolder(name)}/golden.json`, 'utf8')) as { states: GoldenStates }).states;
}

function valuesAt(name: string, { offset, shape }: StoredArray): Float32Array {
  const bytes = readFileSync(`${goldenFolder(name)}/states.f32`);
  const start = bytes.byteOffset + offset;
  return new Float32Array(bytes.buffer.slice(start, start + 4 * shape.reduce((a, b) => a * b, 1)));
}

/** Returns the window of a convolution as a device has it: [taps - 1][channels], without the oldest input. */
function windowOf(values: Float32Array, [channels = 0, kernel = 0]: readonly number[]): Float32Array {
  return Float32Array.from({ length: (kernel - 1) * channels }, (_, i) => {
    const [tap, channel] = [1 + Math.floor(i / channels), i % channels];
    return values[channel * kernel + tap]!;
  });
}

/** Whether the model's recurrence is Mamba2. */
function isStateSpace(name: string): boolean {
  return name.startsWith('granite');
}

/** Returns a window of x, b and c [taps - 1][channels] as a device has it, with c, b and x; `inner`: values of x. */
function reordered(window: Float32Array, channels: number, inner: number): Float32Array {
  const state = (channels - inner) / 2;
  return Float32Array.from(window, (_, i) => {
    const channel = i % channels;
    if (channel >= 2 * state) return window[i - 2 * state]!;
    return window[i + inner + (channel < state ? state : -state)]!;
  });
}

/** Returns a Mamba2 state [heads, head dim, state size] as a device has it: [heads, state size, head dim]. */
function transposed(values: Float32Array, [heads = 0, dim = 0, size = 0]: readonly number[]): Float32Array {
  return Float32Array.from({ length: heads * dim * size }, (_, i) => {
    const [head, key, column] = [Math.floor(i / (dim * size)), Math.floor(i / dim) % size, i % dim];
    return values[(head * dim + column) * size + key]!;
  });
}

async function exported(executable: Executable, slot: number, { slotBytes }: StateLayout): Promise<Uint8Array> {
  const out = new Uint8Array(slotBytes);
  await executable.exportStates([slot], [out]);
  return out;
}

function assertClose(actual: Float32Array, want: Float32Array, what: string): void {
  assert.equal(actual.length, want.length, what);
  const error = maxAbs(actual.map((value, i) => value - want[i]!)) / maxAbs(want);
  assert(error <= BOUND, `${what}: max |Δ| / max is ${error}`);
}

export function stateSuite(models: readonly string[], more: Partial<LoadModelOptions> = {}): void {
  const load = (name: string): Promise<LoadedModel> =>
    loadReference(goldenFolder(name), 'f32', 256, { weightFormat: 'f32', ...more });

  describe.each(models)('%s', (name) => {
    test('states after 64 and 128 tokens are those of the reference, from one step and from several', async () => {
      const { executable, device, layout } = await load(name);
      const state = stateLayoutOf(layout.spec);
      const golden = goldenStates(name);
      const { prompt } = goldenCases(name)[golden.case] ?? assert.fail('the golden states have a case');
      const blockTable = Array.from({ length: Math.ceil(prompt.length / 32) }, (_, i) => i);
      const run = async (start: number, end: number, of: SegmentState): Promise<void> => {
        await executable.run([{ tokens: prompt.slice(start, end), start, blockTable, state: of }]);
      };
      const compare = async (slots: readonly number[]): Promise<void> => {
        assert(state);
        const at = state.layers[golden.layer]!;
        for (const [i, { tokens, conv, recurrent }] of golden.after.entries()) {
          const own = (await exported(executable, slots[i]!, state)).slice(at.offset, at.offset + at.bytes);
          const planes = at.planes.map(({ offset, bytes }) => new Float32Array(own.buffer, offset, bytes / 4));
          const window = windowOf(valuesAt(name, conv), conv.shape);
          const [heads = 0, dim = 0] = recurrent?.shape ?? [];
          const wanted = isStateSpace(name) ? reordered(window, conv.shape[0]!, heads * dim) : window;
          assertClose(planes[0]!, wanted, `window after ${tokens}`);
          if (!recurrent) continue;
          const values = valuesAt(name, recurrent);
          const want = isStateSpace(name) ? transposed(values, recurrent.shape) : values;
          assertClose(planes[1]!, want, `state after ${tokens}`);
        }
      };
      await run(0, 150, {
        saves: [
          { rows: 64, slot: 1 },
          { rows: 128, slot: 2 },
          { rows: 150, slot: 0 },
        ],
      });
      await compare([1, 2]);
      await run(0, 37, { saves: [{ rows: 37, slot: 3 }] });
      await run(37, 65, {
        from: 3,
        saves: [
          { rows: 27, slot: 4 },
          { rows: 28, slot: 3 },
        ],
      });
      await run(65, 128, { from: 3, saves: [{ rows: 63, slot: 5 }] });
      await compare([4, 5]);
      await executable.close();
      device.destroy();
    });

    test('a sequence that goes on from an imported state, and from a copy of it, has the bits of one that never stopped', async () => {
      const { executable, device, layout, folder } = await load(name);
      const state = stateLayoutOf(layout.spec);
      assert(state);
      const tokens = Array.from({ length: 80 }, (_, i) => (i * 37 + 11) % folder.config.vocabSize);
      const blockTable = [0, 1, 2];
      const samples = [{ row: 15, numCandidates: 0, askedTokens: [], isFullRowWanted: true }];
      const rest = async (from: number): Promise<Buffer> => {
        const own = { from, saves: [{ rows: 16, slot: 7 }] };
        const segment = { tokens: tokens.slice(64), start: 64, blockTable, samples, state: own };
        const [result] = await executable.run([segment]);
        return Buffer.concat([Buffer.from(result!.fullRow!), await exported(executable, 7, state)]);
      };
      await executable.run([
        { tokens: tokens.slice(0, 64), start: 0, blockTable, state: { saves: [{ rows: 64, slot: 0 }] } },
      ]);
      const kept = await exported(executable, 0, state);
      const want = await rest(0);
      // Another sequence takes the slot.
      await executable.run([
        { tokens: [1, 2, 3], start: 0, blockTable: [5], state: { saves: [{ rows: 3, slot: 0 }] } },
      ]);
      assert(!(await rest(0)).equals(want), 'the state is that of another sequence');
      await executable.importStates([4], [kept]);
      assert((await rest(4)).equals(want));
      executable.copyStates([4], [6]);
      assert((await rest(6)).equals(want));
      await executable.close();
      device.destroy();
    });
  });
}
