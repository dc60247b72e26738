/** Runs the checks of one Python client library, in a process of its own, and reads their outcomes. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { projectPath } from '../../support/project.ts';

/** A client library with checks in `<name>_checks.py`. */
interface ClientLibrary {
  readonly name: string;
  /** Requirements file, and name of the virtual environment that has its packages. */
  readonly environment: 'clients' | 'guidellm';
  readonly numChecks: number;
}

/** All libraries, in the order in which they are checked. */
export const libraries: readonly ClientLibrary[] = [
  { name: 'openai', environment: 'clients', numChecks: 111 },
  { name: 'langchain', environment: 'clients', numChecks: 14 },
  { name: 'litellm', environment: 'clients', numChecks: 9 },
  { name: 'instructor', environment: 'clients', numChecks: 4 },
  { name: 'llm', environment: 'clients', numChecks: 5 },
  { name: 'anthropic', environment: 'clients', numChecks: 3 },
  { name: 'guidellm', environment: 'guidellm', numChecks: 24 },
];

/** Returns the path of a file next to this one in the sources: Python files are not built. */
export function checksPath(file: string): string {
  return projectPath(`test/e2e/clients_python/${file}`);
}

/** Outcome of one check. */
export interface CheckResult {
  readonly check: string;
  readonly outcome: 'right' | 'wrong' | 'by decision';
  /** Why it is not right; empty when it is. */
  readonly reason: string;
}

const MAX_ERROR_CHARACTERS = 2_000;
const NO_NETWORK = { HF_HUB_OFFLINE: '1', LITELLM_LOCAL_MODEL_COST_MAP: 'True', NO_PROXY: '127.0.0.1' };

/**
 * Runs a library's checks against the server, passes each outcome on as it comes, and returns them all. A file of checks that ends early
 * or defines another number of checks is a wrong result itself.
 */
export async function runChecks(
  { name, numChecks }: ClientLibrary,
  { python, url, model }: { readonly python: string; readonly url: string; readonly model: string },
  onResult: (result: CheckResult) => void,
): Promise<CheckResult[]> {
  const child = spawn(python, [checksPath(`${name}_checks.py`), url, model], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, ...NO_NETWORK, no_proxy: NO_NETWORK.NO_PROXY, PYTHONDONTWRITEBYTECODE: '1' },
  });
  const results: CheckResult[] = [];
  const add = (result: CheckResult): void => {
    results.push(result);
    onResult(result);
  };
  let errors = '';
  child.stderr.on('data', (chunk: Buffer) => (errors = `${errors}${chunk.toString()}`.slice(-MAX_ERROR_CHARACTERS)));
  // Libraries print too, so only lines in the form of a result count.
  createInterface({ input: child.stdout }).on('line', (line) => {
    if (line.startsWith('{"check": ')) add(JSON.parse(line) as CheckResult);
  });
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0 || results.length !== numChecks) {
    const reason = `${results.length} of ${numChecks} checks ran, and Python ended with ${code}: ${errors}`;
    add({ check: 'all checks are there', outcome: 'wrong', reason });
  }
  return results;
}
