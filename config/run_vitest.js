/** Runs vitest with the project's configuration, and returns what failed. */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Folder of what test runs leave. */
export const results = join(root, 'test-results');

/**
 * Runs vitest with `args`, started by `starter` where that is another program, with `environment` besides that of this process. Returns
 * whether it passed, and what config/failures_reporter.js wrote into `name`.json: undefined where vitest ended without it.
 */
export function runVitest(name, args, { starter = [], environment = {} } = {}) {
  const file = join(results, `${name}.json`);
  mkdirSync(results, { recursive: true });
  rmSync(file, { force: true });
  const [command, ...rest] = [
    ...[...starter, process.execPath, join(root, 'node_modules/vitest/vitest.mjs'), 'run'],
    ...['--config', 'config/vitest.config.js', '--project', '!rules'],
    ...['--reporter', 'default', '--reporter', join(root, 'config/failures_reporter.js'), ...args],
  ];
  const env = { ...process.env, ...environment, FAILURES_FILE: file };
  const { status } = spawnSync(command, rest, { cwd: root, stdio: 'inherit', env });
  return { isPassed: status === 0, run: existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : undefined };
}
