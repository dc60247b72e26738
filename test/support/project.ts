/** Finds files of the repository, from the sources and from the build alike. */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

function findRoot(folder: string): string {
  return existsSync(join(folder, 'package.json')) ? folder : findRoot(dirname(folder));
}

const root = findRoot(dirname(fileURLToPath(import.meta.url)));

export function projectPath(path: string): string {
  return join(root, path);
}
