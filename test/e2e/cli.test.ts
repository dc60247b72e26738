/** The `penstock` command as a person meets it: help, configuration, refusals before anything listens, an orderly end. Budget: 40 s. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { createServer, type AddressInfo } from 'node:net';
import { createInterface } from 'node:readline';
import { once } from 'node:events';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { COMMIT, FakeHub } from '../hub/fake_hub.ts';
import { goldenFolder } from '../support/golden.ts';
import { halfOf, sampleOf, sized } from '../support/long.ts';
import { writeSparseModel } from '../support/sparse_model.ts';
import { projectPath } from '../support/project.ts';
import { Cluster, harbour, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { until } from '../support/until.ts';

const folder = temporaryFolder();
const emptyFolder = join(folder.path, 'empty');
mkdirSync(emptyFolder);
const noCertificate = join(folder.path, 'none.pem');
writeFileSync(noCertificate, 'no certificate');
afterAll(() => {
  folder.remove();
});

test('--help names every command and option', async () => {
  const { code, output } = await runToEnd(['--help']);
  assert.equal(code, 0);
  for (const word of [
    'up',
    'router',
    'prefill',
    'decode',
    'store',
    'config',
    '--model MODEL',
    '--kv-dtype',
    '--join HOST:PORT',
    'PENSTOCK_BLOCK_SIZE',
  ]) {
    assert(output.includes(word), word);
  }
});

test.each([
  ['router', ['--max-requests', '--silence-ms', '--hub-bind'], ['--kv-blocks', '--dram-bytes', '--prefill ']],
  [
    'decode',
    ['--kv-blocks', '--device NAME', '--join', '--step-timeout-ms'],
    ['--max-requests', '--disk-bytes', '--hub-bind'],
  ],
  ['store', ['--disk-bytes', '--dram-bytes', '--join'], ['--kv-blocks', '--device', '--max-requests']],
])('penstock %s --help is that role’s', async (role, has, hasNot) => {
  const { code, output } = await runToEnd([role, '--help']);
  assert.equal(code, 0);
  assert.match(output, new RegExp(`^penstock ${role}: `));
  for (const word of has) assert(output.includes(word), word);
  for (const word of hasNot) assert(!output.includes(word), word);
});

test('--version', async () => {
  const { version } = JSON.parse(readFileSync(projectPath('package.json'), 'utf8')) as { version: string };
  const { code, output } = await runToEnd(['--version']);
  assert.deepEqual([code, output], [0, `penstock ${version}\n`]);
});

test('devices where the Vulkan loader has no driver: wasm, and nothing of Dawn on standard error', async () => {
  const none = join(folder.path, 'no driver');
  const { code, output, errors } = await runToEnd(['devices'], { VK_DRIVER_FILES: none, VK_ICD_FILENAMES: none });
  assert.deepEqual([code, errors], [0, '']);
  assert.match(output, /^auto is wasm: no (WebGPU adapter|device file of a GPU)$/m);
  assert.match(output, /^wasm \(.*SIMD WebAssembly.*, products \w+/m);
});

test.concurrent.each([
  ['hub', ['--join', '127.0.0.1:1']],
  ['NATS server', ['--bus', 'nats://127.0.0.1:1']],
])('a role whose %s does not answer says so every few seconds', async (what, where) => {
  const store = run(['store', ...where, '--data-dir', join(folder.path, `lonely ${what}`)]);
  assert(store.stderr);
  let numSaid = 0;
  const reader = createInterface({ input: store.stderr });
  reader.on('line', (line) => (numSaid += line.includes('the bus does not answer') ? 1 : 0));
  while (numSaid < sized(2, 1)) await once(reader, 'line');
  store.kill('SIGKILL');
  await once(store, 'exit');
});

test.concurrent('a bind address that is in use is refused with what to do, HTTP as the hub', async () => {
  const taken = createServer();
  await new Promise<void>((resolve) => {
    taken.listen(0, '127.0.0.1', resolve);
  });
  const { port } = taken.address() as AddressInfo;
  for (const flag of ['--bind', '--hub-bind']) {
    const other = flag === '--bind' ? '--hub-bind' : '--bind';
    const { code, errors } = await runToEnd(['router', flag, `127.0.0.1:${port}`, other, '127.0.0.1:0']);
    assert.equal(code, 1);
    assert.match(errors, new RegExp(`cannot listen on 127\\.0\\.0\\.1:${port}: .*choose another address`));
  }
  taken.close();
});

test.concurrent('an IPv6 address in brackets', async () => {
  const router = run(['router', '--bind', '[::1]:0', '--hub-bind', '[::1]:0', '--log-level', 'error']);
  assert(router.stdout);
  const [line] = (await once(createInterface({ input: router.stdout }), 'line')) as [string];
  const url = /(http:\S+),/.exec(line)?.[1] ?? '';
  assert.match(url, /^http:\/\/\[::1\]:\d+$/);
  assert.equal((await fetch(`${url}/version`)).status, 200);
  router.kill('SIGKILL');
  await once(router, 'exit');
});

test.concurrent(
  'what is published needs no override: every package that a user gets runs on the Node that it asks for',
  () => {
    const lock = JSON.parse(readFileSync(projectPath('npm-shrinkwrap.json'), 'utf8')) as {
      packages: Record<string, { dev?: boolean; engines?: { node?: string } }>;
    };
    const { overrides = {} } = JSON.parse(readFileSync(projectPath('package.json'), 'utf8')) as {
      overrides?: Record<string, string>;
    };
    const used = Object.entries(lock.packages).filter(([name, { dev }]) => name !== '' && !dev);
    expect(used.length).toBeGreaterThan(50);
    for (const [name, { engines }] of used) {
      const least = [...(engines?.node ?? '>=0').matchAll(/>= ?(\d+)/g)].map(([, major]) => Number(major));
      assert(least.length === 0 || Math.min(...least) <= 20, `${name} needs Node ${engines?.node}`);
    }
    // Optional native code aside, which npm leaves out where it does not build.
    const overridden = Object.keys(overrides).filter((name) => used.some(([path]) => path.endsWith(`/${name}`)));
    assert.deepEqual(overridden, ['msgpackr-extract']);
  },
);

test.concurrent('config prints what is in effect: flag over environment over file over default', async () => {
  const file = join(folder.path, 'penstock.yaml');
  writeFileSync(file, 'block_size: 16\nchunk_tokens: 128\nmax_num_seqs: 4\ndisk_bytes: 2GiB\n');
  const { output } = await runToEnd(['config', '--json', '--config', file, '--block-size', '64'], {
    PENSTOCK_BLOCK_SIZE: '48',
    PENSTOCK_CHUNK_TOKENS: '256',
    PENSTOCK_CLUSTER_TOKEN: 'secret',
  });
  const config = JSON.parse(output) as Record<string, unknown>;
  assert.deepEqual(
    [config['block_size'], config['chunk_tokens'], config['max_num_seqs'], config['disk_bytes'], config['max_waiting']],
    [64, 256, 4, 2 ** 31, 1_024],
  );
  assert(!output.includes('secret'), 'the token is not shown');
});

test.concurrent(
  'a role takes what is another’s from the environment and the file, which a machine and a cluster have one of',
  async () => {
    const file = join(folder.path, 'cluster.yaml');
    writeFileSync(file, 'local_prefill_tokens: 16\ndisk_bytes: 0\n');
    // A hub that is not there: at the default address may be a cluster of the same user, whose token it would take.
    const { errors } = await runToEnd(['store', '--config', file, '--bind', '0.0.0.0:0', '--join', '127.0.0.1:1'], {
      PENSTOCK_BLOCK_SIZE: '48',
    });
    assert.match(errors, /refusing to listen/, 'it came so far');
  },
);

describe('what is refused, with the place and what is allowed', () => {
  const freePorts = ['--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0'];
  const cases: [string, string[], Record<string, string>, RegExp][] = [
    ['an unknown command', ['serve'], {}, /no command "serve"/],
    ['an unknown flag', ['up', '--speed', '9'], {}, /--speed/],
    [
      'a flag of another role',
      ['store', '--block-size', '32'],
      {},
      /--block-size means nothing to `store`: .* prefill, decode/,
    ],
    ['a bad value', ['up', '--block-size', '33'], {}, /--block-size: "33" is not allowed: .*multiple of 4/],
    ['a bad choice', ['decode', '--kv-dtype', 'f8'], {}, /--kv-dtype.*"f16"\|"f32"/],
    ['a misspelt variable', ['up'], { PENSTOCK_BLOKC_SIZE: '32' }, /PENSTOCK_BLOKC_SIZE: unknown variable/],
    ['a bad variable', ['up'], { PENSTOCK_THREADS: 'many' }, /PENSTOCK_THREADS: "many" is not allowed/],
    [
      'an open port without a token',
      ['router', '--bind', '0.0.0.0:0'],
      {},
      /refusing to listen on 0\.0\.0\.0:0 without a cluster token/,
    ],
    [
      'an open port with a token that can be guessed',
      ['router', '--bind', '0.0.0.0:0'],
      { PENSTOCK_CLUSTER_TOKEN: 'a' },
      /refusing to listen on 0\.0\.0\.0:0 with a cluster token of fewer than 16 characters, .*openssl rand -hex 24/,
    ],
    [
      'two accounts at the NATS servers',
      ['router', ...freePorts, '--bus', 'nats://ada:word@127.0.0.1:1', '--bus-token', 'other'],
      {},
      /the user or token in --bus and --bus-token exclude one another/,
    ],
    ['a device that is not there', ['decode', '--device', 'webgpu:nope'], {}, /no WebGPU adapter nope; there/],
    [
      'an empty model folder',
      ['router', ...freePorts, '--model', emptyFolder],
      {},
      /the model folder .* is empty: put config\.json/,
    ],
    [
      'a certificate without its key',
      ['up', '--tls-cert', 'a.pem'],
      {},
      /set all of --tls-cert, --tls-key and --tls-ca, or none/,
    ],
    [
      'a certificate that is not there',
      ['store', '--tls-cert', '/nowhere', '--tls-key', '/nowhere', '--tls-ca', '/nowhere'],
      {},
      /--tls-cert \/nowhere: ENOENT/,
    ],
    [
      'a certificate that is none',
      ['store', ...['--tls-cert', '--tls-key', '--tls-ca'].flatMap((flag) => [flag, noCertificate])],
      {},
      /--tls-cert .*: .*PEM/,
    ],
    ['a model that is not there', ['up', '--model', '/nowhere'], {}, /there is no model folder \/nowhere/],
  ];
  test.each(cases)('%s', async (_name, args, environment, pattern) => {
    const { code, errors, output } = await runToEnd(args, environment);
    expect(code).toBeGreaterThan(0);
    assert.match(errors, pattern);
    assert.equal(output.includes('ready'), false);
  });

  test('an unknown key and a bad value in the file', async () => {
    const file = join(folder.path, 'bad.yaml');
    writeFileSync(file, 'blocksize: 32\n');
    const { code, errors } = await runToEnd(['config', '--config', file]);
    assert.equal(code, 2);
    assert.match(errors, /bad\.yaml: blocksize: unknown key; allowed are .*block_size/);
    writeFileSync(file, 'dram_bytes: lots\n');
    assert.match(
      (await runToEnd(['config', '--config', file])).errors,
      /bad\.yaml: dram_bytes: "lots" is not allowed: a size in bytes/,
    );
  });
});

describe('a model folder that cannot be served is refused before anything listens', () => {
  const copy = (name: string): string => {
    const to = join(folder.path, name);
    mkdirSync(to);
    cpSync(goldenFolder('llama-tied'), to, { recursive: true });
    return to;
  };
  const cases: [string, (path: string) => void, RegExp][] = [
    [
      'truncated',
      (path) => truncateSync(join(path, 'model.safetensors'), 300_000),
      /model\.safetensors is truncated: tensor .* ends at \d+, the file at 300000/,
    ],
    ['no-weights', (path) => truncateSync(join(path, 'model.safetensors'), 4), /is truncated \(4 bytes\)/],
    ['other-architecture', (path) => edit(path, { model_type: 'mamba' }), /model_type "mamba" is not supported/],
    ['scaled-rope', (path) => edit(path, { rope_scaling: { rope_type: 'yarn' } }), /rope_scaling yarn without factor/],
    ['other-shapes', (path) => edit(path, { intermediate_size: 96 }), /config\.json makes it/],
    ['no-config', (path) => writeFileSync(join(path, 'config.json'), '{'), /cannot read .*config\.json/],
  ];
  function edit(path: string, change: object): void {
    const file = join(path, 'config.json');
    writeFileSync(file, JSON.stringify({ ...(JSON.parse(readFileSync(file, 'utf8')) as object), ...change }));
  }
  test.each(halfOf(cases))('%s', async (name, damage, pattern) => {
    const path = copy(name);
    damage(path);
    const { code, errors } = await runToEnd(['decode', '--model', path, '--log-level', 'silent']);
    assert.equal(code, 1);
    assert.match(errors, pattern);
  });
});

test('a model that is too large is refused in one line before its weights are read', async () => {
  const path = join(folder.path, 'large');
  mkdirSync(path);
  // A model of 70 billion parameters, 141 GB in files that are holes, for the 256th part of this machine.
  const sizes = { layers: 80, hidden: 8_192, heads: 64, kvHeads: 8, inner: 28_672, vocab: 128_256 };
  writeSparseModel(path, { ...sizes, maxPositions: 8_192, numFiles: 16 });
  const flags = ['--model', path, '--device', 'wasm', '--device-sharing', '256'];
  const { code, output, errors } = await runToEnd(['prefill', ...flags]);
  assert.equal(code, 1);
  assert.match(
    errors.trim().split('\n').at(-1) ?? '',
    /^penstock prefill: the model does not fit: weights take 69\.8 GiB as int8, KV of one sequence of 8192 tokens 2\.5 GiB.*, and each of 256 engines on this machine may have \d+\.\d .iB; no smaller weights, context or steps make it fit: the least that it takes is \d+\.\d GiB, with --weights int4( --chunk-tokens \d+)?( --kv-blocks \d+)?; use a smaller model or a device with more memory$/,
  );
  assert(!`${output}${errors}`.includes('loading weights'));
});

test('up says what started and a curl that works; Ctrl-C ends every child', async () => {
  const up = run(['up', '--bind', '127.0.0.1:0', '--hub-bind', '127.0.0.1:0', '--data-dir', join(folder.path, 'data')]);
  assert(up.stdout);
  const lines: string[] = [];
  const reader = createInterface({ input: up.stdout });
  reader.on('line', (line) => lines.push(line));
  while (!lines.some((line) => line.startsWith('Ctrl-C'))) await once(reader, 'line');
  const text = lines.join('\n');
  for (const pattern of [
    /router started: http:\/\/127\.0\.0\.1:\d+, pid \d+/,
    /decode-1 started: .*wasm/,
    /prefill-1 started/,
    /store-1 started/,
  ])
    assert.match(text, pattern);
  const command = lines.find((line) => line.startsWith('curl'));
  assert(command);
  const { execFileSync } = await import('node:child_process');
  const answer = JSON.parse(execFileSync('sh', ['-c', `${command} -sS -m 20`], { encoding: 'utf8' })) as {
    choices: { message: { content: string } }[];
  };
  assert.equal(answer.choices[0]?.message.content, 'Locker 42 opens with code 9071.');
  const pids = [...text.matchAll(/pid (\d+)/g)].map((match) => Number(match[1]));
  const exit = once(up, 'exit');
  up.kill('SIGINT');
  const [code] = (await exit) as [number | null];
  assert.equal(code, 0);
  for (const pid of pids) assert.throws(() => process.kill(pid, 0), `process ${pid} has ended`);
});

function isRunning(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

// Elsewhere there is no /proc to find npm's shell in, and Windows has no signals.
test.runIf(process.platform === 'linux').each(sampleOf(['SIGTERM', 'SIGINT', 'SIGKILL'] as const, 3))(
  'npm start that gets %s ends the cluster',
  async (signal) => {
    const npm = spawn(
      'npm',
      [
        'start',
        '--',
        '--bind',
        '127.0.0.1:0',
        '--hub-bind',
        '127.0.0.1:0',
        '--data-dir',
        join(folder.path, `npm-${signal}`),
      ],
      { cwd: projectPath('.'), stdio: ['ignore', 'pipe', 'inherit'] },
    );
    const lines = createInterface({ input: npm.stdout });
    let notified = '';
    for await (const line of lines) {
      notified += `${line}\n`;
      if (line.startsWith('Ctrl-C')) break;
    }
    const pids = [...notified.matchAll(/pid (\d+)/g)].map((match) => Number(match[1]));
    expect(pids.length).toBeGreaterThan(3);
    npm.kill(signal);
    await until('every process has ended', () => !pids.some(isRunning));
  },
);

test('--json is one line: the URL, and role, address and pid of each process', async () => {
  const up = run([
    'up',
    '--json',
    '--bind',
    '127.0.0.1:0',
    '--hub-bind',
    '127.0.0.1:0',
    '--store',
    '0',
    '--data-dir',
    join(folder.path, 'data'),
  ]);
  assert(up.stdout);
  let output = '';
  up.stdout.on('data', (chunk: Buffer) => (output += chunk.toString()));
  while (!output.includes('\n')) await once(up.stdout, 'data');
  const { url, processes } = JSON.parse(output) as {
    url: string;
    processes: { role: string; address: string; pid: number }[];
  };
  assert.match(url, /^http:/);
  assert.deepEqual(processes.map(({ role }) => role).sort(), ['decode', 'prefill', 'router']);
  assert(processes.every(({ address, pid }) => address !== '' && pid > 0));
  const exit = once(up, 'exit');
  up.kill('SIGTERM');
  await exit;
  assert.equal(output.trim().split('\n').length, 1, 'nothing else on standard output');
});

test('several models: instances of each, and a request names the one that it means', async () => {
  const gguf = join(goldenFolder('gguf-q4_0'), 'model.gguf');
  const cluster = await Cluster.up('--model', harbour, '--model', gguf, '--store', '0');
  try {
    const { data } = (await (await fetch(`${cluster.url}/v1/models`)).json()) as { data: { id: string }[] };
    expect(data.map(({ id }) => id)).toEqual(['harbour', 'gguf-q4_0']);
    const served = await Promise.all(
      ['harbour', 'gguf-q4_0'].map(async (model) => {
        const response = await fetch(`${cluster.url}/v1/completions`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ model, prompt: 'the harbour', max_tokens: 3 }),
        });
        expect(response.status).toBe(200);
        return ((await response.json()) as { model: string }).model;
      }),
    );
    expect(served).toEqual(['harbour', 'gguf-q4_0']);
  } finally {
    await cluster.close();
  }
  const named = await runToEnd(['up', '--model', harbour, '--model', gguf, '--served-model-name', 'x']);
  expect(named.errors).toContain('--served-model-name is the name of one model');
  const twice = await runToEnd(['up', '--model', harbour, '--model', harbour]);
  expect(twice.errors).toContain('two of --model are called harbour');
});

test('a model by its name: fetched once, listed, served under that name, removed', async () => {
  const hub = new FakeHub(goldenFolder('qwen2'));
  const home = temporaryFolder();
  const environment = { HF_HOME: home.path, HF_ENDPOINT: await hub.listen() };
  try {
    const pulled = await runToEnd(['model', 'pull', 'org/name'], environment);
    assert.deepEqual(
      [pulled.code, pulled.output],
      [0, `${join(home.path, 'hub/models--org--name/snapshots', COMMIT)}\n`],
    );
    assert.match(pulled.errors, /^\d+ % of \d\.\d MiB, .*: config\.json\n/);
    const up = run(
      [
        'up',
        '--json',
        '--bind',
        '127.0.0.1:0',
        '--hub-bind',
        '127.0.0.1:0',
        '--model',
        'org/name',
        '--data-dir',
        home.path,
      ],
      { ...environment, HF_HUB_OFFLINE: '1' },
    );
    assert(up.stdout);
    const [line] = (await once(createInterface(up.stdout), 'line')) as [string];
    const { url } = JSON.parse(line) as { url: string };
    const { data } = (await (await fetch(`${url}/v1/models`)).json()) as { data: { id: string }[] };
    assert.deepEqual(
      data.map(({ id }) => id),
      ['org/name'],
    );
    up.kill('SIGTERM');
    await once(up, 'exit');
    const listed = await runToEnd(['model', 'list', '--json'], environment);
    expect(JSON.parse(listed.output)).toMatchObject([{ repo: 'org/name', revisions: ['main'] }]);
    assert.match(
      (await runToEnd(['model', 'remove', 'org/name'], environment)).output,
      /^org\/name removed, 0\.3 MiB\n$/,
    );
    const gone = await runToEnd(['up', '--model', 'org/name'], { ...environment, HF_HUB_OFFLINE: '1' });
    assert.equal(gone.code, 1);
    assert.match(gone.errors, /HF_HUB_OFFLINE is set, and it of org\/name@main is not in/);
    const unknown = await runToEnd(['model', 'pull', 'org/other'], environment);
    assert.equal(unknown.code, 1);
    assert.match(unknown.errors, /has no org\/other@main/);
    assert.equal((await runToEnd(['model', 'pull', '../x'], environment)).code, 2);
  } finally {
    hub.close();
    home.remove();
  }
});
