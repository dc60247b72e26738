/** Hidden states: rows of a step that come back whole, with samples and without. */
import assert from 'node:assert/strict';
import type { Executable, SampleRequest, Segment } from '../../../kernels/device.ts';
import { casesOf, close, loaded, noise, options, type Conformance } from './suite.ts';

const [WIDTH, VOCAB] = [70, 40];

export function hiddenConformance(device: Conformance): void {
  const { describe, test } = casesOf(device);
  const { name, tolerance } = device;
  const [norm, head] = [noise(WIDTH), noise(VOCAB * WIDTH)];
  /** The end of a model: the last norm of every row for its hidden state, and of sampled rows for their logits. */
  const load = (): Promise<Executable> =>
    loaded(
      device,
      {
        operations: [
          { kind: 'gather_samples', x: 'x', out: 'last' },
          { kind: 'rms_norm', x: 'x', weight: 'norm', out: 'hidden', epsilon: 1e-5 },
          { kind: 'rms_norm', x: 'last', weight: 'norm', out: 'last_normed', epsilon: 1e-5 },
          { kind: 'linear', x: 'last_normed', weight: 'head', out: 'logits', accumulate: false },
          { kind: 'candidates', logits: 'logits', vocab: VOCAB },
        ],
        buffers: {
          x: { rows: 'rows', width: WIDTH },
          hidden: { rows: 'hidden', width: WIDTH },
          last: { rows: 'samples', width: WIDTH },
          last_normed: { rows: 'samples', width: WIDTH },
          logits: { rows: 'samples', width: VOCAB },
        },
        weights: {
          norm: { outputs: WIDTH, inner: 1, parts: [{ tensor: 'norm', outputs: WIDTH }] },
          head: { outputs: VOCAB, inner: WIDTH, parts: [{ tensor: 'head', outputs: VOCAB }] },
        },
      },
      { norm, head },
    );
  /** Segments of so many rows, each with room for the hidden states of its last ones. */
  const batchOf = (...shapes: readonly (readonly [rows: number, wanted: number])[]): Segment[] =>
    shapes.map(([rows, wanted], i) => ({
      tokens: new Array<number>(rows).fill(0),
      start: 0,
      blockTable: [4 * i, 4 * i + 1, 4 * i + 2],
      ...(wanted > 0 ? { hidden: new Float32Array(wanted * WIDTH) } : {}),
    }));
  const equation = (x: Float32Array, row: number): number[] => {
    const values = [...x.subarray(row * WIDTH, (row + 1) * WIDTH)];
    const scale = 1 / Math.sqrt(values.reduce((sum, value) => sum + value * value, 0) / WIDTH + 1e-5);
    return values.map((value, i) => value * scale * norm[i]!);
  };
  const expectHidden = (batch: readonly Segment[], x: Float32Array): void => {
    let end = 0;
    for (const { tokens, hidden } of batch) {
      end += tokens.length;
      const count = (hidden?.length ?? 0) / WIDTH;
      const want = Array.from({ length: count }, (_, i) => equation(x, end - count + i)).flat();
      if (hidden) close(hidden, want, 4 * tolerance);
    }
  };
  const bestOf = (x: Float32Array, row: number): number => {
    const hidden = equation(x, row);
    const logits = Array.from({ length: VOCAB }, (_, token) =>
      hidden.reduce((sum, value, i) => sum + value * head[token * WIDTH + i]!, 0),
    );
    return logits.indexOf(Math.max(...logits));
  };
  const sample: Pick<SampleRequest, 'numCandidates' | 'askedTokens' | 'isFullRowWanted'> = {
    numCandidates: 1,
    askedTokens: [],
    isFullRowWanted: false,
  };

  describe(`${name}: hidden states`, () => {
    test('the last rows of each segment that wants them come back, without samples', async () => {
      const executable = await load();
      assert.equal(executable.hiddenWidth, WIDTH);
      const x = noise(74 * WIDTH);
      await executable.write('x', x);
      for (const batch of [batchOf([1, 1]), batchOf([3, 3]), batchOf([5, 2], [1, 0], [64, 1], [4, 4])]) {
        assert.deepEqual(await executable.run(batch), []);
        expectHidden(batch, x);
      }
      await executable.close();
    });

    test('they come back with samples of one row and of several, and steps that want none are as before', async () => {
      const executable = await load();
      const x = noise(6 * WIDTH);
      await executable.write('x', x);
      const best = async (batch: readonly Segment[]): Promise<number[]> =>
        (await executable.run(batch)).map(({ candidateIds }) => candidateIds[0]!);
      for (let turn = 0; turn < 2; turn++) {
        const [first, second, third] = batchOf([1, 0], [2, 1], [3, 3]) as [Segment, Segment, Segment];
        const one = [{ ...first, samples: [{ ...sample, row: 0 }] }, second, third];
        assert.deepEqual(await best(one), [bestOf(x, 0)]);
        expectHidden(one, x);
        const two = [
          first,
          { ...second, samples: [{ ...sample, row: 1 }] },
          { ...third, samples: [{ ...sample, row: 0 }] },
        ];
        assert.deepEqual(await best(two), [bestOf(x, 2), bestOf(x, 3)]);
        expectHidden(two, x);
        const none = batchOf([1, 0], [2, 0]).map((one) => ({ ...one, samples: [{ ...sample, row: 0 }] }));
        assert.deepEqual(await best(none), [bestOf(x, 0), bestOf(x, 1)]);
      }
      await executable.close();
    });

    test('E2: a row has the same bits alone, and with others', async () => {
      const executable = await load();
      const x = noise(40 * WIDTH);
      await executable.write('x', x);
      const all = batchOf([40, 40]);
      await executable.run(all);
      for (const row of [0, 1, 17, 39]) {
        await executable.write('x', x.slice(row * WIDTH, (row + 1) * WIDTH));
        const alone = batchOf([1, 1]);
        await executable.run(alone);
        assert.deepEqual(alone[0]?.hidden, all[0]?.hidden?.slice(row * WIDTH, (row + 1) * WIDTH), `row ${row}`);
      }
      await executable.close();
    });

    test('room for part of a row, for more rows than there are, or without hidden states is refused', async () => {
      const executable = await load();
      const run = (on: Executable, values: number): Promise<unknown> =>
        Promise.resolve().then(() =>
          on.run([{ tokens: [0, 0], start: 0, blockTable: [0], hidden: new Float32Array(values) }]),
        );
      for (const values of [0, WIDTH - 1, 3 * WIDTH])
        await assert.rejects(run(executable, values), /values are not hidden states, 70 wide, of 2 rows/);
      await executable.close();
      const none = await loaded(device, {
        operations: [{ kind: 'gather_samples', x: 'x', out: 'y' }],
        buffers: { x: { rows: 'rows', width: WIDTH }, y: { rows: 'samples', width: WIDTH } },
      });
      assert.equal(none.hiddenWidth, 0);
      await assert.rejects(run(none, WIDTH), /70 values are not hidden states, 0 wide/);
      await none.close();
    });
  });
  assert(options.maxRows >= 74, 'the suite has steps of 74 rows');
}
