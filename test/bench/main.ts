/** `npm run bench -- NAME [--json FILE]`: prints figures with the machine, writes them as JSON when asked. */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { print, report, type Figure } from './figures.ts';
import { benchPath } from './path.ts';

const benches: Record<string, () => Promise<Figure[]>> = {
  path: () => benchPath({ promptTokens: 1_024, numRequests: 24, numTokens: 32 }),
};

const { values, positionals } = parseArgs({ allowPositionals: true, options: { json: { type: 'string' } } });
const bench = benches[positionals[0] ?? ''];
if (!bench) {
  console.error(`usage: npm run bench -- NAME [--json FILE]; NAME is one of ${Object.keys(benches).join(', ')}`);
  process.exit(2);
}
const result = report(await bench());
print(result);
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(result, undefined, 2)}\n`);
