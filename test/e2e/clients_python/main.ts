/**
 * `npm run clients -- [--only openai,litellm] [--venv FOLDER]`: black-box checks of a local cluster with Python's client libraries. The
 * folder keeps a virtual environment for the clients and one for GuideLLM. Prints a line for each check and a table of sums, and ends
 * with code 1 when a check is wrong, or right though it is marked as failing by decision.
 */
import { readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Cluster } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';
import { checksPath, libraries, runChecks, type CheckResult } from './client_library.ts';
import { pythonWith } from './python_environment.ts';

const MODEL = 'harbour-tools';
const outcomes = ['right', 'wrong', 'by decision'] as const;
const names = libraries.map(({ name }) => name);

const cache = process.env['XDG_CACHE_HOME'] ?? join(homedir(), '.cache');
const { values } = parseArgs({
  options: {
    only: { type: 'string', default: names.join(',') },
    venv: { type: 'string', default: join(cache, 'penstock-clients') },
  },
});

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** Checks that fail by decision are documented, so that users know of them. */
const notes = readFileSync(projectPath('services/router/API_NOTES.md'), 'utf8').replaceAll('`', '');
function isListed({ check }: CheckResult): boolean {
  return notes.includes(check);
}

function row(name: string, cells: readonly (string | number)[]): string {
  return [name.padEnd(12), ...cells.map((cell) => String(cell).padStart(12))].join('');
}

/** Runs the chosen libraries' checks. Returns whether none is wrong. */
async function main(): Promise<boolean> {
  const chosen = values.only.split(',').map((wanted) => {
    const library = libraries.find(({ name }) => name === wanted);
    if (!library) throw new Error(`there are no checks of ${wanted}; there are ${names.join(', ')}`);
    return library;
  });
  const pythons = new Map<string, string>();
  for (const { environment } of chosen) {
    if (pythons.has(environment)) continue;
    const folder = resolve(values.venv, environment);
    pythons.set(environment, pythonWith(folder, checksPath(`${environment}_requirements.txt`), print));
  }
  const table = [row('library', [...outcomes, 'of'])];
  let numWrong = 0;
  const cluster = await Cluster.up('--model', MODEL);
  try {
    for (const library of chosen) {
      const python = pythons.get(library.environment) ?? '';
      const server = { python, url: cluster.url, model: projectPath(`config/models/${MODEL}`) };
      const results = await runChecks(library, server, (result) => {
        print(`${library.name}: ${result.check}: ${[result.outcome, result.reason].filter(Boolean).join(': ')}`);
        if (result.outcome !== 'by decision' || isListed(result)) return;
        numWrong++;
        print(`${library.name}: ${result.check}: wrong: services/router/API_NOTES.md does not list this decision`);
      });
      const counts = outcomes.map((outcome) => results.filter((result) => result.outcome === outcome).length);
      numWrong += counts[outcomes.indexOf('wrong')] ?? 0;
      table.push(row(library.name, [...counts, library.numChecks]));
    }
  } finally {
    await cluster.close();
  }
  print(`\n${table.join('\n')}`);
  return numWrong === 0;
}

try {
  process.exitCode = (await main()) ? 0 : 1;
} catch (error) {
  print(`clients: ${error instanceof Error ? error.message : String(error)}`);
  process.exitCode = 1;
}
