/**
 * Tests run what ships: an import of services/, shared/ or kernels/ source resolves to its build in dist/, loaded by Node itself,
 * so worker threads and WebAssembly are the real ones. `npm run build` comes first.
 */
import { existsSync, readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, ForksPoolWorker } from 'vitest/node';
import { hasMesa26, mesa26 } from './gpu_drivers.js';

const root = fileURLToPath(new URL('..', import.meta.url));

const entries = JSON.parse(readFileSync(resolve(root, 'dist/entries.json'), 'utf8'));

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
        `${relative(root, importer)} imports ${path}, which is the entry of a process or thread and so a bundle of its own: import what stands beside it`,
      );
    return { id: file, external: true };
  },
};

/** On a software GPU, which computes on the cores that everybody else uses. */
const softwareGpu = [
  'test/kernels/webgpu*.test.ts',
  'test/e2e/webgpu.test.ts',
  'test/bench/engine.test.ts',
  'test/gpu/*.test.ts',
];
/** On subgroup matrices, which only a newer Mesa's software driver has. */
const matrices = ['test/kernels/matrices*.test.ts'];

/** A process of the Node that is started beside Mesa 26. */
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

/** Suites of real processes, and long ones of a single process, none of which looks at how long something takes. */
const processes = [
  'test/e2e/chaos/chaos.test.ts',
  'test/sim/sim.test.ts',
  'test/bench/{path,gguf,grammar,samples,store,transfer,conductor}.test.ts',
  ...[
    'node_versions',
    'golden_path',
    'prefix_reuse',
    'roles',
    'cli',
    'openai',
    'samples',
    'embeddings',
    'hybrid',
    'responses',
    'structured',
    'tools',
    'http',
    'oracle',
    'wrong_blocks',
    'hold',
    'failures',
    'any_role_failures',
    'package',
    'pages',
    'windows',
    'nats',
    'tls',
    'dashboard',
    'dashboard_page',
    'dashboard_questions',
    'dashboard_views',
    'inspection',
    'inside_blocks',
    'prompt_privacy',
    'traces',
    'routes',
    'messages',
    'agents/agents',
    'clients/openai',
    'clients/ai_sdk',
    'clients/langchain',
    'clients/anthropic',
    'peers/vllm',
    'peers/sglang',
    'peers/llamacpp',
    'prometheus/prometheus',
    'prometheus/promtool',
  ].map((name) => `test/e2e/${name}.test.ts`),
];
/** Suites that look at what a process takes, and so have the machine to themselves. */
const alone = ['test/engine/steady_state.test.ts'];

/** Suites that take minutes, longest first: a suite that starts last runs alone, so it should be short. */
const long = [
  ...['sim/sim', 'kernels/webgpu', 'kernels/webgpu_models', 'e2e/webgpu', 'chaos/chaos', 'e2e/cli', 'e2e/failures'],
  ...['e2e/nats', 'e2e/hold', 'kernels/wasm', 'e2e/agents/agents', 'kernels/webgpu_subgroup_16', 'kernels/matrices'],
  ...['kernels/matrices_models', 'e2e/oracle', 'e2e/pages', 'e2e/golden_path', 'kernels/memory_shards'],
].map((name) => `${name}.test.ts`);

class LongestFirst extends BaseSequencer {
  async sort(files) {
    const rank = ({ moduleId }) => {
      const at = long.findIndex((name) => moduleId.endsWith(name));
      return at < 0 ? long.length : at;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/** `--mode long`: the whole of what other runs have a sample of (`test/support/long.ts`). */
export default defineConfig(({ mode }) => {
  const env = { LONG: mode === 'long' ? '1' : '' };
  const shared = { environment: 'node', testTimeout: 90_000, hookTimeout: 120_000, env };
  return {
    root,
    plugins: [built],
    test: { sequence: { sequencer: LongestFirst }, projects: projectsWith(shared) },
  };
});

function projectsWith(shared) {
  return [
    {
      root,
      plugins: [built],
      test: {
        ...shared,
        name: 'unit',
        sequence: { groupOrder: 0 },
        include: ['test/**/*.test.ts'],
        exclude: ['test/e2e/**', 'test/sim/sim.test.ts', 'test/bench/**', ...softwareGpu, ...matrices, ...alone],
        // Vitest leaves a core to itself: of two cores that is half of them.
        maxWorkers: Math.max(2, availableParallelism() - 1),
      },
    },
    {
      // A process per file: the driver reads its vector width once.
      root,
      plugins: [built],
      test: {
        ...shared,
        name: 'webgpu',
        testTimeout: 600_000,
        hookTimeout: 120_000,
        sequence: { groupOrder: 1 },
        include: softwareGpu,
        // With more of them all wait for each other's cores.
        maxWorkers: 2,
        pool: 'forks',
      },
    },
    ...(hasMesa26()
      ? [
          {
            root,
            plugins: [built],
            test: {
              ...shared,
              name: 'matrices',
              testTimeout: 600_000,
              hookTimeout: 120_000,
              sequence: { groupOrder: 1 },
              include: matrices,
              maxWorkers: 2,
              pool: { name: 'mesa26', createPoolWorker: (options) => new Mesa26Worker(options) },
            },
          },
        ]
      : []),
    {
      // No suite here measures durations, so two run at a time. Three would take longer: engines with one thread too many wait for each
      // other.
      root,
      plugins: [built],
      test: {
        ...shared,
        name: 'processes',
        sequence: { groupOrder: 2 },
        include: processes,
        pool: 'forks',
        maxWorkers: 2,
        testTimeout: 180_000,
        hookTimeout: 120_000,
      },
    },
    {
      // Real processes on the same cores, and what is measured: one suite at a time.
      root,
      plugins: [built],
      test: {
        ...shared,
        name: 'e2e',
        sequence: { groupOrder: 3 },
        exclude: [...processes, ...softwareGpu],
        include: ['test/e2e/**/*.test.ts', ...alone],
        pool: 'forks',
        fileParallelism: false,
        testTimeout: 180_000,
        hookTimeout: 120_000,
      },
    },
  ];
}
