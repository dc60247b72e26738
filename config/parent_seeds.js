/** Seeds of the simulation that fail, run on the build of the commit before: one that fails there too is no fault of the change. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const LOCK = 'npm-shrinkwrap.json';

function run(cwd, command, ...args) {
  return spawnSync(command, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
}

/**
 * Returns the seeds of `seeds` that fail on the build of the first parent. None where there is no such build: no parent, or one with other
 * dependencies.
 */
export function failingBefore(seeds) {
  if (seeds.length === 0) return [];
  const parent = run(root, 'git', 'rev-parse', '--verify', '--quiet', 'HEAD^1').stdout?.trim() ?? '';
  if (parent === '') return [];
  const folder = mkdtempSync(join(tmpdir(), 'penstock-parent-'));
  const tree = join(folder, 'tree');
  try {
    if (run(root, 'git', 'worktree', 'add', '--detach', tree, parent).status !== 0) return [];
    if (readFileSync(join(tree, LOCK), 'utf8') !== readFileSync(join(root, LOCK), 'utf8')) return [];
    symlinkSync(join(root, 'node_modules'), join(tree, 'node_modules'), 'junction');
    if (run(tree, 'npm', 'run', '--silent', 'build').status !== 0) return [];
    return seeds.filter((seed) => {
      const { status, stdout } = run(
        tree,
        process.execPath,
        'dist/test/sim/main.js',
        '--seeds',
        '1',
        '--from',
        String(seed),
      );
      // Only the simulation's own word counts, not a command that did not run.
      return status !== 0 && stdout.includes(`seed ${seed} failed:`);
    });
  } finally {
    run(root, 'git', 'worktree', 'remove', '--force', tree);
    rmSync(folder, { recursive: true, force: true });
  }
}
