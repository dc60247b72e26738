import assert from 'node:assert/strict';
import type { Executable, SampleRequest, Segment } from '../../../kernels/device.ts';
import { casesOf, close, loaded, noise, type Conformance } from './suite.ts';

export function sampleConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  const load = async (vocab: number): Promise<Executable> =>
    loaded(
      device,
      {
        operations: [
          { kind: 'gather_samples', x: 'x', out: 'logits' },
          { kind: 'candidates', logits: 'logits', vocab },
        ],
        buffers: { x: { rows: 'rows', width: vocab }, logits: { rows: 'samples', width: vocab } },
      },
      {},
      { maxRows: 8 },
    );
  const request = (numCandidates: number, askedTokens: number[] = [], isFullRowWanted = false): SampleRequest => ({
    row: 0,
    numCandidates,
    askedTokens,
    isFullRowWanted,
  });

  for (const vocab of [5, 128, 2_047, 2_049, 5_000]) {
    test(`${name}: candidates of ${vocab} logits are the best in order, ties to the smaller id, with the log-sum-exp`, async () => {
      const executable = await load(vocab);
      // Quarters, so that ties are many.
      const x = noise(4 * vocab).map((value) => Math.round(value * 20) / 4);
      await executable.write('x', x);
      const wanted = [
        request(1),
        request(Math.min(vocab, 128), [vocab - 1, 0]),
        request(Math.min(vocab, 20), [1], true),
        request(0, [vocab - 1]),
      ];
      const results = await executable.run(
        wanted.map((sample, i) => ({ tokens: [0], start: i, blockTable: [i], samples: [sample] })),
      );
      assert.equal(results.length, 4);
      results.forEach((result, row) => {
        const logits = x.subarray(row * vocab, (row + 1) * vocab);
        const order = Array.from(logits.keys()).sort((a, b) => logits[b]! - logits[a]! || a - b);
        const { numCandidates, askedTokens, isFullRowWanted } = wanted[row]!;
        assert.deepEqual([...result.candidateIds], order.slice(0, numCandidates));
        assert.deepEqual(
          [...result.candidateLogits],
          order.slice(0, numCandidates).map((id) => logits[id]),
        );
        assert.deepEqual(
          [...result.askedLogits],
          askedTokens.map((id) => logits[id]),
        );
        assert.deepEqual(result.fullRow && [...result.fullRow], isFullRowWanted ? [...logits] : undefined);
        const highest = logits[order[0]!]!;
        const sum = highest + Math.log(logits.reduce((total, value) => total + Math.exp(value - highest), 0));
        if (numCandidates > 0) close(Float32Array.of(result.logSumExp), [sum], 4 * tolerance);
        else assert(Number.isNaN(result.logSumExp), 'it was not asked for');
      });
      await executable.close();
    });
  }

  test(`${name}: samples are of the rows that are asked for, in order, and of one as often as it is`, async () => {
    const executable = await load(40);
    const x = new Float32Array(6 * 40);
    for (let row = 0; row < 6; row++) x[row * 40 + row] = 1;
    await executable.write('x', x);
    const at = (row: number): SampleRequest => ({ ...request(1), row });
    const results = await executable.run([
      { tokens: [0, 0], start: 0, blockTable: [0], samples: [at(1)] },
      { tokens: [0, 0, 0], start: 0, blockTable: [1], samples: [at(0), at(2), at(2)] },
      { tokens: [0], start: 0, blockTable: [2] },
    ]);
    assert.deepEqual(
      results.map(({ candidateIds }) => [...candidateIds]),
      [[1], [2], [4], [4]],
    );
    await executable.close();
  });

  test(`${name}: rows that are not there and adapters are refused`, async () => {
    const executable = await load(40);
    const run = (more: Partial<Segment>): Promise<unknown> =>
      Promise.resolve().then(() => executable.run([{ tokens: [0, 0], start: 0, blockTable: [0], ...more }]));
    await assert.rejects(run({ samples: [{ ...request(1), row: 2 }] }), /a segment of 2 rows has no 2/);
    await assert.rejects(run({ adapter: 'pirate' }), /cannot apply the adapter pirate/);
    await executable.close();
  });
}
