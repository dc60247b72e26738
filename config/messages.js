/** Message types from penstock.proto, so that nobody writes them twice. */
import { execFileSync } from 'node:child_process';
import { rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const to = 'shared/protocol/generated';

rmSync(new URL(`../${to}`, import.meta.url), { recursive: true, force: true });
execFileSync(
  process.execPath,
  [
    'node_modules/@grpc/proto-loader/build/bin/proto-loader-gen-types.js',
    ...['--longs=Number', '--enums=Number', '--defaults', '--oneofs', `--outDir=${to}`],
    ...['--inputTemplate=%sInput', '--outputTemplate=%s', '--targetFileExtension=.ts', '--importFileExtension=.ts'],
    'shared/protocol/penstock.proto',
  ],
  { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] },
);
