/** A Python package in an environment of its own in the bench's cache folder: peers are no dependencies. */
import { execFileSync } from 'node:child_process';
import { existsSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { cacheFolder } from './llama_peer.ts';

/** @returns the environment's interpreter. @throws Error when python3, its venv module or the package cannot be had. */
export function pythonWith(name: string, version: string, print: (line: string) => void): string {
  const folder = join(cacheFolder(), `${name}-${version}`);
  const python = join(folder, 'bin/python');
  if (existsSync(join(folder, 'installed'))) return python;
  print(`installing ${name} ${version} into ${folder}`);
  rmSync(folder, { recursive: true, force: true });
  execFileSync('python3', ['-m', 'venv', folder], { stdio: 'inherit' });
  execFileSync(python, ['-m', 'pip', 'install', '-q', `${name}==${version}`], { stdio: 'inherit' });
  execFileSync('touch', [join(folder, 'installed')]);
  return python;
}
