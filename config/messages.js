/**
 * Message types from penstock.proto, so that nobody writes them twice, and the sampling without any field. They are made anew where the file,
 * or what makes them, has changed.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { loadSync } from '@grpc/proto-loader';

const root = fileURLToPath(new URL('..', import.meta.url));
const source = 'shared/protocol/penstock.proto';
const to = 'shared/protocol/generated';
const options = [
  ...['--longs=Number', '--enums=Number', '--defaults', '--oneofs', `--outDir=${to}`],
  ...['--inputTemplate=%sInput', '--outputTemplate=%s', '--targetFileExtension=.ts', '--importFileExtension=.ts'],
];

/** Module with the value that a Sampling has when none of its fields is sent. */
function zeroModule() {
  const { 'penstock.Sampling': sampling } = loadSync(join(root, source), {
    longs: Number,
    enums: Number,
    defaults: true,
  });
  const zero = JSON.stringify(sampling.deserialize(Buffer.alloc(0)), null, 2);
  return `import type { Sampling } from './penstock/Sampling.ts';\n\nexport const zeroSampling: Sampling = ${zero};\n`;
}

export async function updateMessages() {
  const { packages } = JSON.parse(readFileSync(join(root, 'npm-shrinkwrap.json'), 'utf8'));
  const hash = createHash('sha256')
    .update(JSON.stringify([options, packages['node_modules/@grpc/proto-loader'].integrity]))
    .update(readFileSync(join(root, source)))
    .update(readFileSync(fileURLToPath(import.meta.url)))
    .digest('hex');
  const stamp = join(root, to, 'made_from.sha256');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === hash) return;
  rmSync(join(root, to), { recursive: true, force: true });
  const generator = 'node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js';
  await promisify(execFile)(process.execPath, [generator, ...options, source], { cwd: root });
  writeFileSync(join(root, to, 'zero_sampling.ts'), zeroModule());
  writeFileSync(stamp, hash);
}
