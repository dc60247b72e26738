import { roundRows, weightFormats } from '../../../kernels/weights/weight_format.ts';
import { casesOf, close, loaded, noise, type Conformance } from './suite.ts';

export function embedConformance(device: Conformance): void {
  const { test } = casesOf(device);
  const { name, formats = weightFormats } = device;
  for (const format of formats) {
    test(`${name}: embed gives the token's row in ${format}, the last token's too`, async () => {
      const [vocab, hidden] = [77, 50];
      const table = noise(vocab * hidden);
      const executable = await loaded(
        device,
        {
          operations: [
            { kind: 'embed', table: 'w', out: 'out' },
            { kind: 'embed', table: 'w', out: 'scaled', scale: 7.5 },
            { kind: 'embed', table: 'w', out: 'sum', scale: -0.5, accumulate: true },
          ],
          buffers: {
            out: { rows: 'rows', width: hidden },
            scaled: { rows: 'rows', width: hidden },
            sum: { rows: 'rows', width: hidden },
          },
          weights: { w: { outputs: vocab, inner: hidden, parts: [{ tensor: 'w', outputs: vocab }] } },
        },
        { w: table },
        { weightFormat: format },
      );
      const tokens = [0, 76, 1, 40, 40];
      const before = noise(tokens.length * hidden);
      await executable.write('sum', before);
      await executable.run([
        { tokens: tokens.slice(0, 3), start: 0, blockTable: [0] },
        { tokens: tokens.slice(3), start: 7, blockTable: [1] },
      ]);
      roundRows(format, table, hidden);
      const expected = tokens.flatMap((token) => [...table.subarray(token * hidden, (token + 1) * hidden)]);
      close(await executable.read('out', tokens.length), expected, 1e-7);
      const scaled = expected.map((value) => 7.5 * value);
      close(await executable.read('scaled', tokens.length), scaled, 1e-7);
      const sum = expected.map((value, i) => before[i]! - 0.5 * value);
      close(await executable.read('sum', tokens.length), sum, 1e-6);
      await executable.close();
    });
  }
}
