import assert from 'node:assert/strict';
import { DeviceError } from '../../../kernels/device.ts';
import { isInteger, roundRows, weightFormats } from '../../../kernels/weights/weight_format.ts';
import { gates } from './gates.ts';
import { product, quantised } from './linear.ts';
import { casesOf, close, loaded, noise, segments, type Conformance } from './suite.ts';

/** Returns the chosen experts of a row and their weights: best first, ties to the lower index. */
function chosen(
  logits: readonly number[],
  perToken: number,
  isNormalised: boolean,
): { experts: number[]; weights: number[] } {
  const order = logits.map((_, expert) => expert).sort((a, b) => logits[b]! - logits[a]! || a - b);
  const experts = order.slice(0, perToken);
  const exponents = logits.map((logit) => Math.exp(logit - logits[order[0]!]!));
  const sum = (isNormalised ? experts : order).reduce((total, expert) => total + exponents[expert]!, 0);
  return { experts, weights: experts.map((expert) => exponents[expert]! / sum) };
}

export function mixtureConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const {
    name,
    tolerance,
    linearTolerance = tolerance,
    quantisesActivations = false,
    sampled = 1,
    formats = weightFormats,
  } = device;
  const cases = [
    { rows: 1, experts: 4, perToken: 2, inner: 32, outputs: 16, isNormalised: true },
    { rows: 3, experts: 8, perToken: 1, inner: 40, outputs: 24, isNormalised: false },
    { rows: 7, experts: 100, perToken: 8, inner: 64, outputs: 8, isNormalised: false },
    { rows: 130, experts: 3, perToken: 2, inner: 33, outputs: 72, isNormalised: true },
    { rows: 64, experts: 16, perToken: 4, inner: 96, outputs: 40, isNormalised: true },
    // More rows than a device that counts rows by experts may have at a time.
    { rows: 150, experts: 1_000, perToken: 3, inner: 8, outputs: 8, isNormalised: true },
  ] as const;
  for (const [i, { rows, experts, perToken, inner, outputs, isNormalised }] of cases.entries()) {
    const format = formats[i % formats.length]!;
    test(`${name}: ${rows} rows to ${perToken} of ${experts} experts [${outputs}, ${inner}] in ${format}, and back`, async () => {
      const [x, weight, before] = [noise(rows * inner), noise(experts * outputs * inner), noise(rows * outputs)];
      // Few values, so that there are ties; and an expert that nobody goes to.
      const logits = noise(rows * experts).map((value, at) => (at % experts === 1 ? -9 : Math.round(4 * value) / 2));
      const perRow = perToken;
      const executable = await loaded(
        device,
        {
          operations: [
            { kind: 'route', logits: 'logits', routes: 'routes', experts, perToken, isNormalised },
            { kind: 'permute', x: 'x', routes: 'routes', out: 'permuted' },
            { kind: 'expert_linear', x: 'permuted', weight: 'w', out: 'made', experts },
            { kind: 'combine', x: 'made', routes: 'routes', out: 'out' },
          ],
          buffers: {
            logits: { rows: 'rows', width: experts },
            routes: { rows: 'rows', width: 2 * perToken },
            x: { rows: 'rows', width: inner },
            permuted: { rows: 'rows', perRow, width: inner },
            made: { rows: 'rows', perRow, width: outputs },
            out: { rows: 'rows', width: outputs },
          },
          weights: {
            w: {
              ...{ outputs: experts * outputs, inner, expertOutputs: outputs },
              parts: [{ tensor: 'w', outputs: experts * outputs }],
            },
          },
        },
        { w: weight },
        { weightFormat: format },
      );
      await executable.write('logits', logits);
      await executable.write('x', x);
      await executable.write('out', before);
      await executable.run(segments(rows));

      const routes = Array.from({ length: rows }, (_, row) =>
        chosen([...logits.subarray(row * experts, (row + 1) * experts)], perToken, isNormalised),
      );
      const expertSlots = routes
        .flatMap((route, row) => route.experts.map((expert, turn) => ({ expert, row, turn })))
        .sort((a, b) => a.expert - b.expert || a.row - b.row);
      const got = await executable.read('routes', rows);
      const bits = new Uint32Array(got.buffer);
      routes.forEach((route, row) => {
        const at = row * 2 * perToken;
        close(got.subarray(at, at + perToken), route.weights, tolerance);
        for (let turn = 0; turn < perToken; turn++) {
          const place = expertSlots.findIndex((one) => one.row === row && one.turn === turn);
          assert.equal(bits[at + perToken + turn], place, `row ${row}, turn ${turn}`);
        }
      });
      const rowOf = (row: number): Float32Array => x.subarray(row * inner, (row + 1) * inner);
      // A device may take rows where they lie; then nobody reads what it never writes.
      const permuted = await executable.read('permuted', expertSlots.length).catch((error: unknown) => {
        assert(error instanceof DeviceError && /does not exist on this device/.test(error.message), String(error));
      });
      if (permuted)
        close(
          permuted,
          expertSlots.flatMap(({ row }) => [...rowOf(row)]),
          1e-7,
        );
      roundRows(format, weight, inner);
      const isQuantised = quantisesActivations && isInteger(format);
      const made = expertSlots.map(({ expert, row }) => {
        const own = weight.subarray(expert * outputs * inner, (expert + 1) * outputs * inner);
        return product(isQuantised ? quantised(rowOf(row), inner) : rowOf(row), own, inner);
      });
      close(await executable.read('made', expertSlots.length), made.flat(), linearTolerance);
      const expected = [...before];
      expertSlots.forEach(({ row, turn }, place) => {
        made[place]!.forEach((value, output) => {
          expected[row * outputs + output]! += routes[row]!.weights[turn]! * value;
        });
      });
      close(await executable.read('out', rows), expected, linearTolerance);
      await executable.close();
    });
  }
  for (const [i, { rows, gate }] of (
    [
      { rows: 1, gate: 'silu_mul' },
      { rows: 3, gate: 'gelu_mul' },
      { rows: 9, gate: 'silu_mul' },
      { rows: 130, gate: 'silu_mul' },
    ] as const
  ).entries()) {
    // When attention shapes are sampled, only the fewest and the most rows run here.
    if (sampled > 1 && i % 3 !== 0) continue;
    const format = formats[(i + 1) % formats.length]!;
    test(`${name}: ${rows} rows through gate, up and down of 3 of 5 experts, ${gate}, in ${format}`, async () => {
      const [experts, perToken, hidden, inner] = [5, 3, 48, 40];
      const [x, before, logits] = [noise(rows * hidden), noise(rows * hidden), noise(rows * experts)];
      const perExpert = Array.from({ length: experts }, () => ({
        gate: noise(inner * hidden),
        up: noise(inner * hidden),
        down: noise(hidden * inner),
      }));
      const tensors = Object.fromEntries(
        perExpert.flatMap((own, expert) => Object.entries(own).map(([kind, values]) => [`${kind} ${expert}`, values])),
      );
      const partsOf = (kinds: readonly string[], outputs: number): { tensor: string; outputs: number }[] =>
        perExpert.flatMap((_, expert) => kinds.map((kind) => ({ tensor: `${kind} ${expert}`, outputs })));
      const perRow = perToken;
      const executable = await loaded(
        device,
        {
          operations: [
            { kind: 'route', logits: 'logits', routes: 'routes', experts, perToken, isNormalised: true },
            { kind: 'permute', x: 'x', routes: 'routes', out: 'permuted' },
            { kind: 'expert_linear', x: 'permuted', weight: 'gate_up', out: 'pairs', experts },
            { kind: gate, gateUp: 'pairs', out: 'gated', inner },
            { kind: 'expert_linear', x: 'gated', weight: 'down', out: 'made', experts },
            { kind: 'combine', x: 'made', routes: 'routes', out: 'out' },
          ],
          buffers: {
            logits: { rows: 'rows', width: experts },
            routes: { rows: 'rows', width: 2 * perToken },
            x: { rows: 'rows', width: hidden },
            permuted: { rows: 'rows', perRow, width: hidden },
            pairs: { rows: 'rows', perRow, width: 2 * inner },
            gated: { rows: 'rows', perRow, width: inner },
            made: { rows: 'rows', perRow, width: hidden },
            out: { rows: 'rows', width: hidden },
          },
          weights: {
            gate_up: {
              ...{ outputs: experts * 2 * inner, inner: hidden, expertOutputs: 2 * inner },
              parts: partsOf(['gate', 'up'], inner),
            },
            down: {
              ...{ outputs: experts * hidden, inner, expertOutputs: hidden },
              parts: partsOf(['down'], hidden),
            },
          },
        },
        tensors,
        { weightFormat: format },
      );
      await executable.write('logits', logits);
      await executable.write('x', x);
      await executable.write('out', before);
      await executable.run(segments(rows));
      const areQuantised = quantisesActivations && isInteger(format);
      const seen = (values: Float32Array, width: number): Float32Array =>
        areQuantised ? quantised(values, width) : values;
      for (const own of perExpert) {
        for (const values of [own.gate, own.up]) roundRows(format, values, hidden);
        roundRows(format, own.down, inner);
      }
      const expected = [...before];
      for (let row = 0; row < rows; row++) {
        const own = x.subarray(row * hidden, (row + 1) * hidden);
        const route = chosen([...logits.subarray(row * experts, (row + 1) * experts)], perToken, true);
        route.experts.forEach((expert, turn) => {
          const weights = perExpert[expert]!;
          const ups = product(seen(own, hidden), weights.up, hidden);
          const gated = product(seen(own, hidden), weights.gate, hidden).map((v, at) => gates[gate](v) * ups[at]!);
          product(seen(Float32Array.from(gated), inner), weights.down, inner).forEach((value, output) => {
            expected[row * hidden + output]! += route.weights[turn]! * value;
          });
        });
      }
      close(await executable.read('out', rows), expected, areQuantised ? 1e-2 : 4 * linearTolerance);
      await executable.close();
    });
  }
}
