/** Virtual environments of Python with the packages of a requirements file. */
import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const MIN_PYTHON = 11;

/** Runs a command with its errors on ours, and throws `otherwise` when it cannot be run or fails. */
function runPython(python: string, args: readonly string[], otherwise: string): void {
  const { status } = spawnSync(python, args, { stdio: ['ignore', 'ignore', 'inherit'] });
  if (status !== 0) throw new Error(otherwise);
}

/**
 * Returns the interpreter of the virtual environment in this folder, after it has installed there what the requirements file says; an
 * environment that has exactly that is left as it is. Throws an Error that says what to install when Python, its module venv or a
 * package is missing.
 */
export function pythonWith(folder: string, requirements: string, print: (line: string) => void): string {
  const python = join(folder, 'bin/python');
  const wanted = readFileSync(requirements, 'utf8');
  const installed = join(folder, 'installed.txt');
  if (existsSync(installed) && readFileSync(installed, 'utf8') === wanted) return python;
  const version = `import sys; sys.exit(sys.version_info < (3, ${MIN_PYTHON}))`;
  runPython('python3', ['-c', version], `install Python 3.${MIN_PYTHON} or later, as the command python3`);
  print(`installing ${wanted.trim().replaceAll('\n', ', ')} into ${folder}`);
  const venv = 'install Python’s modules venv and ensurepip (on Debian the package python3-venv)';
  runPython('python3', ['-m', 'venv', folder], venv);
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--requirement', requirements];
  runPython(python, pip, `pip could not install what ${requirements} lists: look at its message above`);
  writeFileSync(installed, wanted);
  return python;
}
