/**
 * Builds what the TypeScript compiler leaves out: the WebAssembly kernels, the dashboard's page as one bundle, the files that code reads at
 * run time (.wgsl, .proto, .html, .svg), and a copy of the grammar library.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, mkdirSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { buildSync } from 'esbuild';

const root = fileURLToPath(new URL('..', import.meta.url));

/** Made after all that it is made from last changed. */
function isNewer(file, sources) {
  const changedMs = (path) => statSync(join(root, path)).mtimeMs;
  return existsSync(join(root, file)) && sources.every((source) => changedMs(source) < changedMs(file));
}

const kernels = readdirSync(join(root, 'kernels/wasm/as'));
const madeFrom = [...kernels.map((name) => `kernels/wasm/as/${name}`), 'config/build.js', 'npm-shrinkwrap.json'];
mkdirSync(join(root, 'dist/kernels/wasm'), { recursive: true });
for (const [file, features] of [
  ['kernels', 'simd,threads,bulk-memory'],
  ['kernels_relaxed', 'simd,threads,bulk-memory,relaxed-simd'],
]) {
  const to = `dist/kernels/wasm/${file}.wasm`;
  if (isNewer(to, madeFrom)) continue;
  execFileSync(
    process.execPath,
    [
      join(root, 'node_modules/assemblyscript/bin/asc.js'),
      'kernels/wasm/as/kernels.as.ts',
      ...['-o', to, '--enable', features, '--runtime', 'stub'],
      ...['--importMemory', '--sharedMemory', '--initialMemory', '1', '--maximumMemory', '65536', '--noAssert', '-O3'],
    ],
    { cwd: root, stdio: 'inherit' },
  );
}

for (const folder of ['kernels', 'shared', 'services']) {
  for (const entry of readdirSync(join(root, folder), { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !/\.(wgsl|proto|html|svg)$/.test(entry.name)) continue;
    const from = join(entry.parentPath, entry.name);
    const to = join(root, 'dist', from.slice(root.length));
    mkdirSync(dirname(to), { recursive: true });
    cpSync(from, to);
  }
}
// The browser loads three files and nothing from elsewhere; `tsc -p services/router/dashboard` has checked the types.
buildSync({
  absWorkingDir: root,
  entryPoints: ['services/router/dashboard/app.tsx'],
  outdir: 'dist/services/router/dashboard',
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'inline',
  logLevel: 'warning',
});
// A UMD module within a package of ES modules: Node loads it under this name only.
cpSync(
  join(root, 'node_modules/@mlc-ai/web-xgrammar/lib/index.js'),
  join(root, 'dist/shared/grammar/matcher/xgrammar.cjs'),
);
chmodSync(join(root, 'dist/services/cli/main.js'), 0o755);

if (process.platform === 'win32') {
  // `npm start` hands itself over to node, so that signals to npm reach it; the shell of Windows has no word for that.
  writeFileSync(join(root, 'node_modules/.bin/exec.cmd'), '@%*\r\n');
}
