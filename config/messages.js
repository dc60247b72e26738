/** Message types from penstock.proto, so that nobody writes them twice. They are made anew where the file, or what makes them, has changed. */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const source = 'shared/protocol/penstock.proto';
const to = 'shared/protocol/generated';
const options = [
  ...['--longs=Number', '--enums=Number', '--defaults', '--oneofs', `--outDir=${to}`],
  ...['--inputTemplate=%sInput', '--outputTemplate=%s', '--targetFileExtension=.ts', '--importFileExtension=.ts'],
];

export async function updateMessages() {
  const { packages } = JSON.parse(readFileSync(join(root, 'npm-shrinkwrap.json'), 'utf8'));
  const hash = createHash('sha256')
    .update(JSON.stringify([options, packages['node_modules/@grpc/proto-loader'].integrity]))
    .update(readFileSync(join(root, source)))
    .digest('hex');
  const stamp = join(root, to, 'made_from.sha256');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === hash) return;
  rmSync(join(root, to), { recursive: true, force: true });
  const generator = 'node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js';
  await promisify(execFile)(process.execPath, [generator, ...options, source], { cwd: root });
  writeFileSync(stamp, hash);
}
