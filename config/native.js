/**
 * The native kernels: C sources of kernels/native, compiled where a C compiler is found into a library that kernels/native/native_library.ts
 * opens. It is kept as long as sources, flags and compiler stay the same. Without a compiler the build says so in one line, and the
 * WebAssembly kernels compute.
 */
import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const folder = fileURLToPath(new URL('../kernels/native/', import.meta.url));

/** Systems and processors that there are sources for. */
const TARGETS = ['linux-x64'];
const FLAGS = [
  ...['-std=gnu11', '-O2', '-fPIC', '-ffreestanding', '-fno-stack-protector', '-fvisibility=hidden'],
  // The order of operations is that of the WebAssembly kernels: nothing is reassociated or contracted.
  ...['-fno-math-errno', '-ffp-contract=off', '-w'],
];
/** No symbol of another library: what one system links loads on an older one. */
const LINK_FLAGS = ['-shared', '-nostdlib', '-Wl,-z,defs', '-Wl,--build-id=none', '-s'];
const AVX2 = ['-mavx2', '-mfma', '-mf16c'];
const AVX512 = [...AVX2, '-mavx512f', '-mavx512bw', '-mavx512vl', '-mavx512dq'];
/** Objects of the library: a source, the ending of its functions' names, and flags. */
export const OBJECTS = [
  ['machine.c', '', []],
  ['floats.c', 'avx2', AVX2],
  ['floats.c', 'avx512', AVX512],
  ['attention.c', 'avx2', AVX2],
  ['attention.c', 'avx512', AVX512],
  ['rows.c', 'avx2', AVX2],
  ['rows.c', 'avx512', AVX512],
  ['products.c', 'avx2', AVX2],
  ['products.c', 'vnni256', [...AVX2, '-mavxvnni']],
  ['products.c', 'avx512', [...AVX512, '-mavx512vnni']],
  ['products_amx.c', 'amx', [...AVX512, '-mavx512vnni', '-mamx-tile', '-mamx-int8']],
];

/** Sets whose instructions compilers of a few years ago do not know. */
const OPTIONAL = ['vnni256', 'amx'];

const compilerName = () => process.env.CC || 'cc';
const sha256Of = (bytes) => createHash('sha256').update(bytes).digest('hex');

/** Runs the compiler, whose name may have arguments: `ccache gcc`. */
function call(compiler, args) {
  const [file, ...first] = existsSync(compiler) ? [compiler] : compiler.split(/\s+/);
  return run(file, [...first, ...args]);
}

/** Returns the first line that the compiler says of itself, or undefined when there is none. */
async function versionOf(compiler) {
  try {
    return (await call(compiler, ['--version'])).stdout.split('\n')[0];
  } catch {
    return undefined;
  }
}

/** Returns the library of an earlier build and its record; undefined where there is none, or an interrupted build has left it. */
function builtIn(folder, target) {
  try {
    const library = readFileSync(join(folder, `${target}.so`));
    const record = JSON.parse(readFileSync(join(folder, `${target}.json`), 'utf8'));
    return record.sha256 === sha256Of(library) ? { library, record } : undefined;
  } catch {
    return undefined;
  }
}

function hashOf(version) {
  const hash = createHash('sha256').update(JSON.stringify([FLAGS, LINK_FLAGS, OBJECTS, version]));
  for (const name of readdirSync(folder)
    .filter((one) => /\.[ch]$/.test(one))
    .sort())
    hash.update(`\0${name}\0`).update(readFileSync(join(folder, name)));
  return hash.digest('hex');
}

/**
 * Compiles sources of a folder into a library: `objects` as in OBJECTS, those of this build unless a test names others, which may need `libraries`.
 * @throws Error with what the compiler says
 */
export async function compileNative(
  to,
  { sources = folder, objects = OBJECTS, libraries = [], compiler = compilerName() } = {},
) {
  const work = mkdtempSync(join(tmpdir(), 'penstock-native-'));
  try {
    const compiled = await Promise.all(
      objects.map(async ([source, set, flags], i) => {
        const object = join(work, `${i}.o`);
        const names = set === '' ? [] : [`-DPENSTOCK_ISA=${set}`];
        try {
          await call(compiler, [...FLAGS, ...flags, ...names, '-c', join(sources, source), '-o', object]);
          return [object];
        } catch (error) {
          if (!OPTIONAL.includes(set)) throw error;
          console.log(`${compiler} does not know the instructions of native:${set}, which the build leaves out`);
          return [];
        }
      }),
    );
    await call(compiler, [...LINK_FLAGS, ...compiled.flat(), ...libraries, '-o', to]);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/**
 * Returns the files of the native kernels for a build, [name, content], compiled anew unless `built`, the folder of an earlier build, has
 * them of the same sources, flags and compiler. None where there is no compiler or the sources have no form for this machine.
 */
export async function nativeFiles(built) {
  const target = `${process.platform}-${process.arch}`;
  if (!TARGETS.includes(target)) return [];
  const compiler = compilerName();
  const version = await versionOf(compiler);
  if (version === undefined) {
    console.log(
      `no C compiler (${compiler}): the build has no native kernels, and products are computed in WebAssembly`,
    );
    return [];
  }
  const filesOf = (library, record) => [
    [`${target}.so`, library],
    [`${target}.json`, JSON.stringify(record)],
  ];
  const sources = hashOf(version);
  const kept = builtIn(built, target);
  if (kept?.record.sources === sources) return filesOf(kept.library, kept.record);
  const work = mkdtempSync(join(tmpdir(), 'penstock-native-'));
  try {
    await compileNative(join(work, 'library.so'), { compiler });
    const library = readFileSync(join(work, 'library.so'));
    return filesOf(library, { sha256: sha256Of(library), sources });
  } catch (error) {
    const said = String(error.stderr || error.message).split('\n');
    const cause = said.find((line) => /\berror:/.test(line)) ?? said[0];
    console.log(
      `${version} does not compile kernels/native, so the build has no native kernels, and products are computed in WebAssembly: ${cause}`,
    );
    return [];
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** A package is not made without the native kernels, nor with others than were built: who installs it needs no compiler. */
function check() {
  const built = fileURLToPath(new URL('../dist/kernels/native/', import.meta.url));
  for (const target of TARGETS) {
    if (builtIn(built, target)) continue;
    console.error(`dist has no native kernels for ${target}: make the package on such a machine, with a C compiler`);
    process.exitCode = 1;
  }
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href && process.argv.includes('--check'))
  check();
