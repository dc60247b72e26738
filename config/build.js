/**
 * Builds dist/. Types are removed, not checked: `npm run types` checks them.
 *
 *   entries          modules that start a process or a thread, found in the code: bundled, with chunks that they share, so that a class
 *                    exists once in a process and a start loads few files
 *   other modules    one file each, with the same path: what tests import
 *   dashboard        its page, one bundle for the browser
 *   native kernels   a library, where there is a C compiler
 *   files            what code reads at run time (.wgsl, .wasm, .proto, .html, .svg), and a copy of the grammar library
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, posix, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { init } from 'es-module-lexer';
import { build, formatMessages } from 'esbuild';
import { updateKernels } from './kernels.js';
import { updateMessages } from './messages.js';
import { MODULE_OPTIONS, withBuiltImports } from './module_text.js';
import { nativeFiles } from './native.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');
const dashboard = 'services/dashboard';
const command = 'services/cli/main.ts';
const chunks = 'chunks';
const nativeFolder = 'kernels/native';
const grammar = 'shared/grammar/matcher/xgrammar.cjs';

// esbuild's garbage collector takes half of its time. Without it a build takes 0.6 GB, and a larger one is limited.
process.env.GOGC ??= 'off';
process.env.GOMEMLIMIT ??= '1GiB';

/** Packages that stay outside of bundles: they read files next to themselves, such as a native binary, or may be absent. */
const external = [
  ...['@node-rs/xxhash', 'koffi', 'lmdb', 'webgpu'],
  ...['@grpc/grpc-js', '@grpc/proto-loader', 'grpc-health-check', 'pino'],
  // Large ones, loaded when they are needed.
  ...['@huggingface/gguf', '@huggingface/hub', 'nats', 'undici', 'yaml'],
  ...['@opentelemetry/exporter-trace-otlp-http', '@opentelemetry/resources', '@opentelemetry/sdk-trace-base'],
];

/** Ends the build with one line that says which file is at fault and what to do. */
class BuildError extends Error {}

const isShipped = (path) => !path.startsWith('test/');

/** Returns the modules that a module starts by their place: `new URL('./engine_worker.js', import.meta.url)`. */
function startedBy(path, text, modules) {
  return [...text.matchAll(/new URL\(\s*['"`]([^'"`]+\.js)['"`],\s*import\.meta\.url/g)].map(([, name]) => {
    const started = posix.join(posix.dirname(path), name).replace(/js$/, 'ts');
    if (!modules.has(started))
      throw new BuildError(`${path} starts ${name}, which has no source: create ${started}, or correct the name`);
    return started;
  });
}

/** @throws BuildError for an import of a module that is not built, or of an entry */
function checkImport(path, name, modules, entries) {
  const imported = posix.join(posix.dirname(path), name);
  if (!modules.has(imported))
    throw new BuildError(`${path} imports ${name}, which is not built: create it, or correct the path`);
  if (entries.has(imported))
    throw new BuildError(
      `${path} imports ${name}, which is the entry of a process or thread and so a bundle of its own: move what it needs into a file next to it`,
    );
}

const escaped = (text) => text.replaceAll(/[^\w]/g, '\\$&');

/** A bundle has modules from many places, so each module's own place is written as one relative to dist/. */
const DIST = '__penstock_dist';
const moduleUrls = (placed) => ({
  name: 'places-of-modules',
  setup: ({ onLoad }) => {
    // The filter names the modules: each call of the function is a message between two processes.
    const endings = [...placed.keys()].map((path) => path.split('/').map(escaped).join('[\\\\/]'));
    onLoad({ filter: new RegExp(`[\\\\/](${endings.join('|')})$`) }, ({ path }) => {
      const name = relative(root, path).replaceAll(sep, '/');
      const text = placed.get(name);
      if (text === undefined) return undefined;
      const place = `new URL(${JSON.stringify(name.replace(/ts$/, 'js'))}, ${DIST}).href`;
      return { contents: text.replaceAll('import.meta.url', place), loader: 'ts' };
    });
  },
});

/** zod brings its messages in fifty languages, half of its code; it speaks English unless it is told otherwise. */
const englishOnly = {
  name: 'english-only',
  setup: ({ onResolve }) => {
    onResolve({ filter: /^\.\.\/locales\/index\.js$/ }, ({ importer }) => {
      const from = /^(.*[\\/]zod[\\/]v4[\\/])\w+[\\/](external|index)\.js$/.exec(importer);
      return from ? { path: join(from[1], 'locales', 'en.js') } : undefined;
    });
  },
};

function bundleText(path, text) {
  const up = posix.relative(posix.dirname(path), '.');
  return text.replaceAll(DIST, `new URL(${JSON.stringify(up === '' ? './' : `${up}/`)}, import.meta.url)`);
}

const built = new Set();
function write(path, content) {
  built.add(path);
  const to = join(dist, path);
  // A file that stays as it is keeps its time, and whoever is reading it is not disturbed.
  if (existsSync(to) && readFileSync(to).equals(Buffer.from(content))) return;
  mkdirSync(dirname(to), { recursive: true });
  // A library that a process has mapped must not change under it: the old file lives on until the process ends.
  const written = `${to}.${process.pid}.new`;
  writeFileSync(written, content);
  renameSync(written, to);
}

/** A file that was deleted must not live on in the build. */
function removeOthers() {
  for (const entry of readdirSync(dist, { recursive: true, withFileTypes: true })) {
    const path = relative(dist, join(entry.parentPath, entry.name)).replaceAll(sep, '/');
    if (entry.isFile() && !built.has(path)) rmSync(join(dist, path));
  }
}

/** Paths of all files of the project that a build looks at, relative to its root. */
function listFiles() {
  return ['kernels', 'shared', 'services', 'test'].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => relative(root, join(entry.parentPath, entry.name)).replaceAll(sep, '/')),
  );
}

/** Returns the files of a build that has ended, and prints its warnings. @throws BuildError with its errors */
async function outputsOf({ value, reason }) {
  const shown = async (kind, messages) =>
    (await formatMessages(messages, { kind, color: process.stderr.isTTY ?? false })).join('');
  if (reason) throw reason.errors ? new BuildError(await shown('error', reason.errors)) : reason;
  if (value.warnings.length > 0) console.error(await shown('warning', value.warnings));
  return value.outputFiles;
}

async function main() {
  const [native] = await Promise.all([nativeFiles(join(dist, nativeFolder)), init, updateKernels(), updateMessages()]);
  const files = listFiles();
  const modules = new Set(files.filter((path) => /(?<!\.as|\.d)\.ts$/.test(path)));
  const copied = files.filter((path) => /\.(wgsl|wasm|proto|html|svg)$/.test(path) && isShipped(path));
  // Shipped modules that ask for their own place, and their sources.
  const placed = new Map(
    [...modules]
      .filter(isShipped)
      .map((path) => [path, readFileSync(join(root, path), 'utf8')])
      .filter(([, text]) => text.includes('import.meta.url')),
  );
  const entries = new Set([command, ...[...placed].flatMap(([path, text]) => startedBy(path, text, modules))]);
  const common = { ...MODULE_OPTIONS, absWorkingDir: root, write: false, outdir: 'dist', outbase: '.' };
  const [plain, bundled, page] = await Promise.allSettled([
    // vitest transforms tests itself.
    build({ ...common, entryPoints: [...modules].filter((path) => !entries.has(path) && !path.endsWith('.test.ts')) }),
    build({
      ...common,
      entryPoints: [...entries],
      bundle: true,
      splitting: true,
      chunkNames: `${chunks}/[name]-[hash]`,
      external,
      plugins: [moduleUrls(placed), englishOnly],
      // Packages of CommonJS within a bundle of ES modules load Node's own modules with it.
      banner: {
        js: "import { createRequire as __createRequire } from 'node:module';\nconst require = __createRequire(import.meta.url);",
      },
    }),
    build({
      ...common,
      entryPoints: [`${dashboard}/app.tsx`],
      platform: 'browser',
      bundle: true,
      minify: true,
      target: 'es2022',
      jsx: 'automatic',
      jsxImportSource: 'preact',
      legalComments: 'inline',
    }),
  ]);
  const nameOf = ({ path }) => relative(dist, path).replaceAll(sep, '/');
  // Imports are checked before the bundles are looked at, whose errors are longer.
  for (const file of await outputsOf(plain)) {
    const path = nameOf(file).replace(/js$/, 'ts');
    const onImport = (name) => checkImport(path, name, modules, entries);
    write(nameOf(file), withBuiltImports(path, file.text, onImport));
  }
  for (const file of await outputsOf(bundled)) write(nameOf(file), bundleText(nameOf(file), file.text));
  for (const file of await outputsOf(page)) write(nameOf(file), file.contents);
  for (const path of copied) write(path, readFileSync(join(root, path)));
  for (const [name, content] of native) write(posix.join(nativeFolder, name), content);
  // A UMD module within a package of ES modules: Node loads it under this name only.
  write(grammar, readFileSync(join(root, 'node_modules/@mlc-ai/web-xgrammar/lib/index.js')));
  // config/vitest.config.js refuses imports of entries.
  write('entries.json', JSON.stringify([...entries].sort(), null, 2));
  chmodSync(join(dist, command.replace(/ts$/, 'js')), 0o755);
  removeOthers();
  if (process.platform === 'win32') {
    // `npm start` hands itself over to node, so that signals to npm reach it; the shell of Windows has no word for that.
    writeFileSync(join(root, 'node_modules/.bin/exec.cmd'), '@%*\r\n');
  }
}

await main().catch((error) => {
  console.error(error instanceof BuildError ? error.message : error.stack);
  process.exitCode = 1;
});
