/**
 * The WebAssembly kernels lie in the tree compiled, with a hash of what they were compiled from: sources, flags and compiler. A build
 * takes them when that hash is that of its sources, and compiles them anew otherwise. `node config/kernels.js --check` (lint) compiles
 * them in any case and compares the bytes.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const folder = join(root, 'kernels/wasm');
const hashFile = 'kernels/wasm/kernels.sha256';
const compiler = 'node_modules/assemblyscript/bin/asc.js';

/** Features of each module. */
const modules = {
  kernels: 'simd,threads,bulk-memory',
  kernels_relaxed: 'simd,threads,bulk-memory,relaxed-simd',
};
const FLAGS = [
  ...['--runtime', 'stub', '--importMemory', '--sharedMemory', '--initialMemory', '1', '--maximumMemory', '65536'],
  ...['--noAssert', '-O3'],
];

function sourcesHash() {
  const { packages } = JSON.parse(readFileSync(join(root, 'npm-shrinkwrap.json'), 'utf8'));
  const compilers = ['assemblyscript', 'binaryen'].map((name) => packages[`node_modules/${name}`].integrity);
  const hash = createHash('sha256').update(JSON.stringify([modules, FLAGS, compilers]));
  for (const name of readdirSync(join(folder, 'as')).sort()) {
    // Lines end as git wrote them here; the kernels do not depend on it.
    const text = readFileSync(join(folder, 'as', name), 'utf8').replaceAll('\r\n', '\n');
    hash.update(`\0${name}\0`).update(text);
  }
  return hash.digest('hex');
}

function storedHash() {
  return existsSync(join(root, hashFile)) ? readFileSync(join(root, hashFile), 'utf8').trim() : '';
}

/** Compiles all modules into a folder, at the same time. */
async function compile(to) {
  const run = promisify(execFile);
  await Promise.all(
    Object.entries(modules).map(([name, features]) =>
      run(
        process.execPath,
        [
          join(root, compiler),
          'kernels/wasm/as/kernels.as.ts',
          ...['-o', join(to, `${name}.wasm`), '--enable', features, ...FLAGS],
        ],
        { cwd: root, maxBuffer: 2 ** 24 },
      ),
    ),
  );
}

/** Compiles the kernels where the tree holds those of other sources. @throws Error with one line where that cannot be done */
export async function updateKernels() {
  const hash = sourcesHash();
  const isThere = Object.keys(modules).every((name) => existsSync(join(folder, `${name}.wasm`)));
  if (isThere && storedHash() === hash) return;
  if (!existsSync(join(root, compiler)))
    throw new Error(
      `${hashFile} is not the hash of kernels/wasm/as, and the compiler is not installed: npm ci, then npm run build`,
    );
  console.log('compiling the WebAssembly kernels: their sources, flags or compiler have changed');
  await compile(folder).catch((error) => {
    throw new Error(`kernels/wasm/as does not compile:\n${error.stderr || error.message}`);
  });
  writeFileSync(join(root, hashFile), `${hash}\n`);
}

async function check() {
  const to = mkdtempSync(join(tmpdir(), 'penstock-kernels-'));
  try {
    await compile(to);
    const cure = 'npm run build, and commit kernels/wasm';
    const faults = storedHash() === sourcesHash() ? [] : [`${hashFile} is not the hash of kernels/wasm/as: ${cure}`];
    for (const name of Object.keys(modules).map((one) => `${one}.wasm`)) {
      const isThere = existsSync(join(folder, name));
      if (!isThere || !readFileSync(join(to, name)).equals(readFileSync(join(folder, name))))
        faults.push(`kernels/wasm/${name} is not what its sources compile to: delete it, ${cure}`);
    }
    for (const fault of faults) console.error(fault);
    process.exitCode = faults.length > 0 ? 1 : 0;
  } finally {
    rmSync(to, { recursive: true, force: true });
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href && process.argv.includes('--check'))
  await check();
