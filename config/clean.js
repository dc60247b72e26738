/** Removes from the build what has no source any more: a file that was deleted must not live on in it. */
import { existsSync, readdirSync, rmSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');

for (const entry of existsSync(dist) ? readdirSync(dist, { recursive: true, withFileTypes: true }) : []) {
  if (!entry.isFile() || !/\.(js|css|wgsl|proto|html|svg)$/.test(entry.name)) continue;
  const file = join(entry.parentPath, entry.name);
  const source = join(root, relative(dist, file));
  if (!['.ts', '.tsx'].some((ending) => existsSync(source.replace(/\.js$/, ending)))) rmSync(file);
}
