/**
 * Tests run what ships: an import of services/, shared/ or kernels/ source resolves to its build in dist/, loaded by Node itself,
 * so worker threads and WebAssembly are the real ones. `npm run build` comes first. config/suites.js says which suite is in which project.
 */
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, ForksPoolWorker } from 'vitest/node';
import { hasMesa26, mesa26 } from './gpu_drivers.js';
import { listSuites, wholeSuites } from './suites.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const entries = JSON.parse(readFileSync(resolve(root, 'dist/entries.json'), 'utf8'));
const suites = listSuites();

const built = {
  name: 'built-sources',
  enforce: 'pre',
  resolveId(source, importer) {
    if (!importer || !source.startsWith('.') || !source.endsWith('.ts')) return undefined;
    const path = relative(root, resolve(dirname(importer), source));
    if (!/^(services|shared|kernels)\//.test(path)) return undefined;
    const file = resolve(root, 'dist', path.replace(/\.ts$/, '.js'));
    if (!existsSync(file)) throw new Error(`${path} is not built: npm run build`);
    if (entries.includes(path))
      throw new Error(
        `${relative(root, importer)} imports ${path}, which is the entry of a process or thread and so a bundle of its own: import what stands next to it`,
      );
    return { id: file, external: true };
  },
};

/** A process of the Node that is started with Mesa 26. */
class Mesa26Worker extends ForksPoolWorker {
  name = 'mesa26';

  constructor(options) {
    super({ ...options, env: { ...options.env, ...mesa26().env, TEST_DRIVER: 'mesa26' } });
  }

  async start() {
    const { execPath } = process;
    // Read when it forks, before anything is awaited.
    process.execPath = mesa26().execPath;
    const started = super.start();
    process.execPath = execPath;
    await started;
  }
}

/** A suite that starts last runs alone, so it should be short. */
class LongestFirst extends BaseSequencer {
  async sort(files) {
    const rank = ({ moduleId }) => suites.findIndex(({ path }) => moduleId.endsWith(path));
    return [...files].sort((a, b) => rank(a) - rank(b));
  }
}

/** Against what hangs, the only limit of time (test/support/until.ts): a test waits several times. */
const patienceMs = Number(process.env.TEST_PATIENCE_MS || 600_000);
/** Suites of units wait for threads and sockets now and then, and leave their core to others. */
const maxWorkers = Math.max(4, availableParallelism());
/** Settings of each project. `groupOrder`: projects of one group run at the same time. */
const settings = {
  // Rules of the tree: `npm run lint:rules`.
  rules: { sequence: { groupOrder: 0 } },
  // Threads that go from file to file: modules are loaded once.
  unit: { pool: 'threads', isolate: false, sequence: { groupOrder: 1 }, maxWorkers },
  // Suites that change or measure what a process has once: its environment, flags, signals, memory.
  isolated: { pool: 'forks', sequence: { groupOrder: 1 }, maxWorkers },
  // On a software GPU, which computes on the cores that everybody else uses. A process per file: the driver reads its vector width once.
  webgpu: { pool: 'forks', sequence: { groupOrder: 3 }, maxWorkers: 2 },
  // On subgroup matrices, which only a newer Mesa's software driver has.
  matrices: {
    sequence: { groupOrder: 3 },
    maxWorkers: 2,
    pool: { name: 'mesa26', createPoolWorker: (options) => new Mesa26Worker(options) },
  },
  // No suite here measures, so two run at a time. Three would take longer: engines with one thread too many wait for each other.
  processes: { pool: 'forks', sequence: { groupOrder: 4 }, maxWorkers: 2 },
  // Suites that measure, or that look at what a process takes: one at a time.
  alone: { pool: 'forks', sequence: { groupOrder: 5 }, fileParallelism: false },
};

/** Returns a project of the suites in `include`; with `isWhole` they leave nothing out. */
function project(name, include, isWhole) {
  const env = { LONG: isWhole ? '1' : '', TEST_PATIENCE_MS: String(patienceMs) };
  const limits = { testTimeout: 2 * patienceMs, hookTimeout: 2 * patienceMs };
  const test = {
    name: isWhole ? `${name}-whole` : name,
    environment: 'node',
    env,
    include,
    ...limits,
    ...settings[name],
  };
  return { root, plugins: [built], test };
}

/** `--mode long`: the whole of what other runs have a sample of, and nothing else (`test/support/long.ts`). */
export default defineConfig(({ mode }) => {
  const isLong = mode === 'long';
  const whole = wholeSuites(suites, { isLong, isContinuous: Boolean(process.env.CI) });
  const pathsOf = (name, isWhole) =>
    suites.filter((one) => one.project === name && whole.has(one.path) === isWhole).map(({ path }) => path);
  const names = Object.keys(settings).filter((name) => name !== 'matrices' || hasMesa26());
  const projects = names
    .flatMap((name) => [
      project(name, pathsOf(name, true), true),
      ...(isLong ? [] : [project(name, pathsOf(name, false), false)]),
    ])
    .filter(({ test }) => test.include.length > 0);
  return { root, plugins: [built], test: { sequence: { sequencer: LongestFirst }, projects } };
});
