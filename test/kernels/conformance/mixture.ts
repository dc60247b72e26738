import assert from 'node:assert/strict';
import { DeviceError } from '../../../kernels/device.ts';
import type { Gate } from '../../../kernels/program.ts';
import { isInteger, roundRows, weightFormats } from '../../../kernels/weights/weight_format.ts';
import { gateOf, gates } from './gates.ts';
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

interface SigmoidCase {
  readonly rows: number;
  readonly experts: number;
  readonly perToken: number;
  readonly isNormalised: boolean;
  readonly hasBias?: boolean;
  readonly groups?: number;
  readonly groupsPerToken?: number;
  readonly scale?: number;
}

/** Returns the chosen experts of a row by sigmoid scores, and their weights. */
function chosenBySigmoid(
  logits: readonly number[],
  bias: readonly number[],
  { perToken, isNormalised, groups = 1, groupsPerToken = 1, scale = 1 }: SigmoidCase,
): { experts: number[]; weights: number[] } {
  const scores = logits.map((logit) => 1 / (1 + Math.exp(-logit)));
  const biased = scores.map((score, expert) => score + bias[expert]!);
  const size = logits.length / groups;
  const sums = Array.from({ length: groups }, (_, group) => {
    const [best = 0, second = 0] = biased.slice(group * size, (group + 1) * size).sort((a, b) => b - a);
    return best + second;
  });
  const open = sums.map((_, group) => group).sort((a, b) => sums[b]! - sums[a]! || a - b);
  const isOpen = new Set(open.slice(0, groupsPerToken));
  const experts = logits
    .map((_, expert) => expert)
    .filter((expert) => isOpen.has(Math.floor(expert / size)))
    .sort((a, b) => biased[b]! - biased[a]! || a - b)
    .slice(0, perToken);
  const sum = isNormalised ? experts.reduce((total, expert) => total + scores[expert]!, 1e-20) : 1;
  return { experts, weights: experts.map((expert) => (scores[expert]! / sum) * scale) };
}

/** Tests routing by sigmoid scores: the experts in their order, and the weights. */
export function sigmoidRoutingConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  const cases: readonly SigmoidCase[] = [
    { rows: 1, experts: 4, perToken: 2, isNormalised: true },
    { rows: 5, experts: 7, perToken: 7, isNormalised: false, hasBias: true, scale: 2.5 },
    { rows: 40, experts: 16, perToken: 3, isNormalised: true, hasBias: true, groups: 4, groupsPerToken: 2 },
    { rows: 3, experts: 6, perToken: 2, isNormalised: true, groups: 6, groupsPerToken: 3, scale: 0.5 },
    {
      rows: 70,
      experts: 256,
      perToken: 8,
      isNormalised: true,
      hasBias: true,
      groups: 8,
      groupsPerToken: 4,
      scale: 2.5,
    },
    { rows: 2, experts: 1_000, perToken: 5, isNormalised: false, hasBias: true, groups: 200, groupsPerToken: 100 },
  ];
  for (const one of cases) {
    const { rows, experts, perToken, isNormalised, hasBias = false, groups = 1, groupsPerToken = 1, scale = 1 } = one;
    const more = `${hasBias ? ', biased' : ''}${groups > 1 ? `, ${groupsPerToken} of ${groups} groups` : ''}`;
    test(`${name}: ${rows} rows to ${perToken} of ${experts} experts by sigmoid scores${more}`, async () => {
      // Few values, so that there are ties.
      const logits = noise(rows * experts).map((value) => Math.round(12 * value) / 4);
      const bias = noise(experts).map((value) => Math.round(2 * value) / 4);
      const executable = await loaded(
        device,
        {
          operations: [
            {
              kind: 'route',
              logits: 'logits',
              routes: 'routes',
              experts,
              perToken,
              isNormalised,
              scoring: 'sigmoid',
              scale,
              ...(hasBias ? { bias: 'bias' } : {}),
              ...(groups > 1 ? { groups, groupsPerToken } : {}),
            },
            { kind: 'permute', x: 'x', routes: 'routes', out: 'permuted' },
            { kind: 'combine', x: 'permuted', routes: 'routes', out: 'out' },
          ],
          buffers: {
            logits: { rows: 'rows', width: experts },
            routes: { rows: 'rows', width: 2 * perToken },
            x: { rows: 'rows', width: 4 },
            permuted: { rows: 'rows', perRow: perToken, width: 4 },
            out: { rows: 'rows', width: 4 },
          },
          weights: hasBias ? { bias: { outputs: experts, inner: 1, parts: [{ tensor: 'b', outputs: experts }] } } : {},
        },
        { b: bias },
      );
      await executable.write('logits', logits);
      await executable.run(segments(rows));
      const got = await executable.read('routes', rows);
      const bits = new Uint32Array(got.buffer);
      const noBias = new Array<number>(experts).fill(0);
      const routes = Array.from({ length: rows }, (_, row) =>
        chosenBySigmoid([...logits.subarray(row * experts, (row + 1) * experts)], hasBias ? [...bias] : noBias, one),
      );
      const expertSlots = routes
        .flatMap((route, row) => route.experts.map((expert, turn) => ({ expert, row, turn })))
        .sort((a, b) => a.expert - b.expert || a.row - b.row);
      routes.forEach((route, row) => {
        const at = row * 2 * perToken;
        close(got.subarray(at, at + perToken), route.weights, tolerance);
        for (let turn = 0; turn < perToken; turn++) {
          const place = expertSlots.findIndex((slot) => slot.row === row && slot.turn === turn);
          assert.equal(bits[at + perToken + turn], place, `row ${row}, turn ${turn}`);
        }
      });
      await executable.close();
    });
  }
  test(`${name}: routing that no kernel supports is refused`, async () => {
    const load = (more: object): Promise<unknown> =>
      loaded(device, {
        operations: [
          { kind: 'route', logits: 'logits', routes: 'routes', experts: 8, perToken: 4, isNormalised: true, ...more },
        ],
        buffers: { logits: { rows: 'rows', width: 8 }, routes: { rows: 'rows', width: 8 } },
      });
    for (const [more, pattern] of [
      [{ groups: 2, groupsPerToken: 1 }, /softmax scores/],
      [{ scoring: 'sigmoid', groups: 3, groupsPerToken: 1 }, /3 groups/],
      [{ scoring: 'sigmoid', groups: 4, groupsPerToken: 1 }, /cannot have 4 experts/],
    ] as const)
      await assert.rejects(load(more), (error) => error instanceof DeviceError && pattern.test(error.message));
  });
}

/** Tests weights with a factor by expert, and a combination that replaces what is there. */
export function scaledRoutingConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, tolerance } = device;
  for (const [scoring, rows, experts, perToken, width] of [
    ['softmax', 1, 8, 3, 20],
    ['softmax', 70, 128, 8, 36],
    ['sigmoid', 5, 16, 2, 4],
  ] as const) {
    test(`${name}: ${rows} rows to ${perToken} of ${experts} experts by ${scoring} scores, with a factor by expert, combined alone`, async () => {
      const [logits, scales, x] = [noise(rows * experts), noise(experts), noise(rows * width)];
      const executable = await loaded(
        device,
        {
          operations: [
            {
              kind: 'route',
              logits: 'logits',
              routes: 'routes',
              experts,
              perToken,
              isNormalised: true,
              scoring,
              expertScales: 's',
            },
            { kind: 'permute', x: 'x', routes: 'routes', out: 'permuted' },
            { kind: 'combine', x: 'permuted', routes: 'routes', out: 'out', accumulate: false },
          ],
          buffers: {
            logits: { rows: 'rows', width: experts },
            routes: { rows: 'rows', width: 2 * perToken },
            x: { rows: 'rows', width },
            permuted: { rows: 'rows', perRow: perToken, width },
            out: { rows: 'rows', width },
          },
          weights: { s: { outputs: experts, inner: 1, parts: [{ tensor: 's', outputs: experts }] } },
        },
        { s: scales },
      );
      await executable.write('logits', logits);
      await executable.write('x', x);
      await executable.write('out', noise(rows * width));
      await executable.run(segments(rows));
      const noBias = new Array<number>(experts).fill(0);
      const expected = Array.from({ length: rows }, (_, row) => {
        const own = [...logits.subarray(row * experts, (row + 1) * experts)];
        const { experts: picks, weights } =
          scoring === 'softmax'
            ? chosen(own, perToken, true)
            : chosenBySigmoid(own, noBias, { rows, experts, perToken, isNormalised: true });
        const factor = picks.reduce((sum, expert, i) => sum + weights[i]! * scales[expert]!, 0);
        return [...x.subarray(row * width, (row + 1) * width)].map((value) => value * factor);
      }).flat();
      close(await executable.read('out', rows), expected, tolerance);
      await executable.close();
    });
  }
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
              outputs: experts * outputs,
              inner,
              expertOutputs: outputs,
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
  for (const [i, { rows, gate, hasBias = false }] of (
    [
      { rows: 1, gate: 'silu_mul' },
      { rows: 3, gate: 'gelu_mul' },
      { rows: 9, gate: 'silu_mul' },
      { rows: 130, gate: 'silu_mul' },
      { rows: 1, gate: 'clamped_swiglu', hasBias: true },
      { rows: 7, gate: 'silu_mul', hasBias: true },
      { rows: 130, gate: 'clamped_swiglu', hasBias: true },
    ] as readonly { readonly rows: number; readonly gate: Gate['kind']; readonly hasBias?: boolean }[]
  ).entries()) {
    // When attention shapes are sampled, only the fewest and the most rows run here.
    if (sampled > 1 && i % 3 !== 0) continue;
    const format = formats[(i + 1) % formats.length]!;
    test(`${name}: ${rows} rows through gate, up and down of 3 of 5 experts${hasBias ? ' with biases' : ''}, ${gate}, in ${format}`, async () => {
      const [experts, perToken, hidden, inner] = [5, 3, 48, 40];
      const [x, before, logits] = [noise(rows * hidden), noise(rows * hidden), noise(rows * experts)];
      const perExpert = Array.from({ length: experts }, () => ({
        gate: noise(inner * hidden),
        up: noise(inner * hidden),
        down: noise(hidden * inner),
        gateBias: noise(inner),
        upBias: noise(inner),
        downBias: noise(hidden),
      }));
      const biasOf = (weight: string): { bias?: string } => (hasBias ? { bias: `${weight}.bias` } : {});
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
            { kind: 'expert_linear', x: 'permuted', weight: 'gate_up', out: 'pairs', experts, ...biasOf('gate_up') },
            gateOf(gate, 'pairs', 'gated', inner),
            { kind: 'expert_linear', x: 'gated', weight: 'down', out: 'made', experts, ...biasOf('down') },
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
              outputs: experts * 2 * inner,
              inner: hidden,
              expertOutputs: 2 * inner,
              parts: partsOf(['gate', 'up'], inner),
            },
            down: { outputs: experts * hidden, inner, expertOutputs: hidden, parts: partsOf(['down'], hidden) },
            ...(hasBias
              ? {
                  'gate_up.bias': {
                    outputs: experts * 2 * inner,
                    inner: 1,
                    parts: partsOf(['gateBias', 'upBias'], inner),
                  },
                  'down.bias': { outputs: experts * hidden, inner: 1, parts: partsOf(['downBias'], hidden) },
                }
              : {}),
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
          const bias = (values: Float32Array, at: number): number => (hasBias ? values[at]! : 0);
          const ups = product(seen(own, hidden), weights.up, hidden);
          const gated = product(seen(own, hidden), weights.gate, hidden).map((value, at) =>
            gates[gate](value + bias(weights.gateBias, at), ups[at]! + bias(weights.upBias, at)),
          );
          product(seen(Float32Array.from(gated), inner), weights.down, inner).forEach((value, output) => {
            expected[row * hidden + output]! += route.weights[turn]! * (value + bias(weights.downBias, output));
          });
        });
      }
      close(await executable.read('out', rows), expected, areQuantised ? 1e-2 : 4 * linearTolerance);
      await executable.close();
    });
  }
}
