/** Models by name, from a local server with a hub's routes that cuts, refuses and lies. Budget: 20 s. */
import assert from 'node:assert/strict';
import {
  cpSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readlinkSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { leaseProcess } from '../../services/cli/lease_process.ts';
import { ProgressLine } from '../../services/cli/progress_line.ts';
import { bootId } from '../../shared/base/boot_id.ts';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { HubError } from '../../shared/hub/download.ts';
import { Hub, type Progress } from '../../shared/hub/hub.ts';
import { parseRepoName } from '../../shared/model/repo_name.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { readModelFolder } from '../../shared/model/model_folder.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { ggufFile } from '../support/gguf_file.ts';
import { goldenFolder } from '../support/golden.ts';
import { loadReference } from '../support/reference_loop.ts';
import { turn } from '../support/until.ts';
import { COMMIT, FakeHub, type Fault } from './fake_hub.ts';

const SHARD = 'model-00001-of-00002.safetensors';
let hub: FakeHub;
let endpoint: string;
let home: string;
beforeEach(async () => {
  hub = new FakeHub(goldenFolder('qwen2'), { 'README.md': 'x', 'pytorch_model.bin': 'nobody wants it' });
  endpoint = await hub.listen();
  home = mkdtempSync(join(tmpdir(), 'hub-'));
});
afterEach(() => {
  hub.close();
  rmSync(home, { recursive: true });
});

/** Waits are as long as they are said to be, and over at once. */
const waits: number[] = [];
const clock: Clock = {
  ...systemClock,
  sleep: async (ms) => {
    waits.push(ms);
    // eslint-disable-next-line time/speed -- the clock itself: short waits are real
    await systemClock.sleep(Math.min(ms, 20));
  },
};

function open(
  more: Readonly<Record<string, string>> = {},
  onProgress?: (progress: Progress) => void,
): { hub: Hub; notes: string[] } {
  const notes: string[] = [];
  const environment = { HF_HOME: home, HF_ENDPOINT: endpoint, ...more };
  const onNote = (note: string): void => void notes.push(note);
  return { hub: new Hub({ ...host, clock, environment, onNote, ...(onProgress ? { onProgress } : {}) }), notes };
}

const host = { fetch: globalThis.fetch, lease: leaseProcess };

const cached = (...parts: string[]): string => join(home, 'hub', 'models--org--name', ...parts);

test('a model comes by its name, into the layout that others know, and runs from there', async () => {
  const seen: Progress[] = [];
  const folder = await open({}, (progress) => seen.push(progress)).hub.pathOf('org/name');
  assert.equal(folder, cached('snapshots', COMMIT));
  for (const name of ['config.json', 'model.safetensors.index.json', SHARD, 'model-00002-of-00002.safetensors'])
    assert.deepEqual(readFileSync(join(folder, name)), readFileSync(join(goldenFolder('qwen2'), name)));
  assert(lstatSync(join(folder, SHARD)).isSymbolicLink());
  assert.match(readlinkSync(join(folder, SHARD)), /^\.\.\/\.\.\/blobs\/[0-9a-f]{64}$/);
  assert.equal(readFileSync(cached('refs', 'main'), 'utf8'), COMMIT);
  assert.equal(hub.numRequests('pytorch_model.bin'), 0, 'what is not read is not fetched');
  const last = seen.at(-1);
  assert(last && last.doneBytes === last.totalBytes && last.totalBytes > 300_000);

  assert.equal(readModelFolder(folder).name, 'org/name');
  const { executable, device } = await loadReference(folder, 'f32');
  await executable.close();
  device.destroy();

  const before = hub.requests.length;
  assert.equal(await open().hub.pathOf('org/name@v1'), folder);
  assert.equal(hub.requests.length, before + 2, 'what is there is not fetched again');
  assert.equal(await open().hub.pathOf('org/name'), folder);
  assert.equal(hub.requests.length, before + 3, 'nor asked for');
  assert.equal(readFileSync(cached('refs', 'v1'), 'utf8'), COMMIT);
});

test.each<[string, Fault[], number]>([
  [
    'cuts',
    [
      { kind: 'cut', after: 1_000 },
      { kind: 'cut', after: 50_000 },
      { kind: 'cut', after: 0 },
    ],
    4,
  ],
  [
    'a busy hub',
    [
      { kind: 'status', status: 429, retryAfter: '7' },
      { kind: 'status', status: 503 },
    ],
    3,
  ],
  ['wrong bytes, once', [{ kind: 'wrong' }], 2],
])('%s: the file is whole in the end', async (name, faults, numRequests) => {
  hub.faults.set(SHARD, [...faults]);
  waits.length = 0;
  const { hub: own, notes } = open();
  const folder = await own.pathOf('org/name');
  assert.deepEqual(readFileSync(join(folder, SHARD)), readFileSync(join(goldenFolder('qwen2'), SHARD)));
  assert.equal(hub.numRequests(SHARD), numRequests);
  expect(notes.length).toBe(faults.length);
  if (name === 'a busy hub') assert(waits.includes(7_000), 'as long as the hub says');
  const ranges = hub.requests.filter(({ path }) => path.endsWith(SHARD)).map(({ range }) => range);
  if (name === 'cuts') {
    assert.equal(ranges[0], undefined);
    const starts = ranges.slice(1).map((range) => Number(/^bytes=(\d+)-$/.exec(range ?? '')?.[1]));
    assert(
      starts.every((start, i) => start >= (starts[i - 1] ?? 1)),
      `goes on where it stopped: ${starts.join()}`,
    );
  }
});

test('what another process left half is gone on with', async () => {
  const bytes = readFileSync(join(goldenFolder('qwen2'), SHARD));
  await open().hub.pathOf('org/name');
  const blob = join(cached('snapshots', COMMIT), readlinkSync(join(cached('snapshots', COMMIT), SHARD)));
  rmSync(join(cached('snapshots', COMMIT), SHARD));
  writeFileSync(`${blob}.incomplete`, bytes.subarray(0, 70_000));
  rmSync(blob);
  await open().hub.pathOf('org/name');
  assert.deepEqual(readFileSync(blob), bytes);
  assert.equal(hub.requests.at(-1)?.range, 'bytes=70000-');
});

test('what never comes right is refused in words, and nothing of it counts', async () => {
  const refusals: [Fault[], RegExp][] = [
    [[{ kind: 'wrong' }, { kind: 'wrong' }], /has other bytes than the hub says, twice/],
    [
      Array.from({ length: 9 }, () => ({ kind: 'status', status: 500 })),
      /does not come: the hub answered 500; run it again/,
    ],
    [[{ kind: 'status', status: 404 }], /the hub has no .*resolve/],
    [[{ kind: 'status', status: 403 }], /refuses .*accept the model's terms there, and set HF_TOKEN/],
  ];
  for (const [faults, pattern] of refusals) {
    hub.faults.set(SHARD, faults);
    await assert.rejects(open().hub.pathOf('org/name'), (error) => {
      assert(error instanceof HubError);
      assert.match(error.message, pattern);
      return true;
    });
    assert(!existsSync(join(cached('snapshots', COMMIT), SHARD)));
    assert(!existsSync(cached('refs', 'main')));
    hub.faults.clear();
  }
});

test('a busy list is asked for again; a token is shown, and one that is missing is said', async () => {
  hub.listStatuses.push(429, 502);
  hub.token = 'secret';
  await open({ HF_TOKEN: 'secret' }).hub.pathOf('org/name');
  assert(hub.requests.every(({ token }) => token === 'Bearer secret'));
  await assert.rejects(
    open().hub.pathOf('org/name'),
    /refuses org\/name \(401\): is it there, are its terms accepted, is HF_TOKEN set/,
  );
  await assert.rejects(open({ HF_TOKEN: 'secret' }).hub.pathOf('org/other'), /has no org\/other@main/);
});

test('without a hub the cache serves; what it lacks is named', async () => {
  const folder = await open().hub.pathOf('org/name');
  const requests = hub.requests.length;
  const offline = open({ HF_HUB_OFFLINE: '1' });
  assert.equal(await offline.hub.pathOf('org/name'), folder);
  assert.equal(hub.requests.length, requests);
  hub.close();
  const unreachable = open();
  assert.equal(await unreachable.hub.pathOf('org/name'), folder);
  assert.match(unreachable.notes[0] ?? '', /does not answer .*; using what is in the cache/);
  rmSync(join(folder, SHARD));
  await assert.rejects(
    offline.hub.pathOf('org/name'),
    /HF_HUB_OFFLINE is set, and model-00001-of-00002\.safetensors of org\/name@main is not in/,
  );
  await assert.rejects(offline.hub.pathOf('org/else'), /and it of org\/else@main is not in/);
});

test('two processes at once bring it once', async () => {
  const [one, other] = await Promise.all([open().hub.pathOf('org/name'), open().hub.pathOf('org/name')]);
  assert.equal(one, other);
  assert.equal(hub.numRequests(SHARD), 1);
});

test('a lock whose owner has died is taken; one whose owner lives is waited for', async () => {
  mkdirSync(cached('blobs'), { recursive: true });
  writeFileSync(cached('.penstock.lock'), '');
  let passed = 0;
  const hurried: Clock = {
    ...clock,
    // eslint-disable-next-line time/speed -- the clock itself
    nowMs: () => systemClock.nowMs() + passed,
    sleep: async (ms) => {
      // Looks at the lock only: what watches a download would find it silent.
      if (ms === 250) passed += ms;
      await turn();
    },
  };
  const environment = { HF_HOME: home, HF_ENDPOINT: endpoint };
  const folder = await new Hub({ ...host, clock: hurried, environment }).pathOf('org/name');
  assert(passed >= 15_000);
  assert(existsSync(join(folder, SHARD)) && !existsSync(cached('.penstock.lock')));
});

test('a lock of a process that is seen to be dead is taken at once', async () => {
  mkdirSync(cached('blobs'), { recursive: true });
  const namespace = readlinkSync('/proc/self/ns/pid');
  const dead = { pid: 2 ** 22 + 1, start: '1', namespace, boot: bootId(), id: 'theirs', beat: 3 };
  writeFileSync(cached('.penstock.lock'), JSON.stringify(dead));
  waits.length = 0;
  await open().hub.pathOf('org/name');
  assert(!waits.includes(250), 'nobody waits for it');
  assert(!existsSync(cached('.penstock.lock')));
});

test('a hub that names no commit is refused: nothing is written out of the cache', async () => {
  hub.commit = '../../../../elsewhere';
  await assert.rejects(open().hub.pathOf('org/name'), /returned no commit of org\/name@main/);
});

test('a new commit of the same files brings none of them again', async () => {
  await open().hub.pathOf('org/name');
  hub.commit = 'beef'.padEnd(40, '1');
  const before = hub.numRequests(SHARD);
  const folder = await open().hub.pathOf('org/name');
  assert.equal(folder, cached('snapshots', hub.commit));
  assert.equal(hub.numRequests(SHARD), before);
});

test('the list, and what is removed', async () => {
  const own = open().hub;
  assert.deepEqual(own.list(), []);
  const path = await own.pathOf('org/name');
  const [only] = own.list();
  expect(only).toMatchObject({ repo: 'org/name', commit: COMMIT, revisions: ['main'], path });
  assert.equal(own.remove({ repo: 'org/name', revision: 'main' }), only?.bytes);
  assert.deepEqual(own.list(), []);
  assert.throws(() => own.remove({ repo: 'org/name', revision: 'main' }), /org\/name is not in/);
});

test('templates by name come from their folder, and nothing else from folders', async () => {
  hub.close();
  const more = { 'additional_chat_templates/tool_use.jinja': 'with tools', 'onnx/model.jinja': 'nobody wants it' };
  hub = new FakeHub(goldenFolder('qwen2'), { 'chat_template.jinja': 'usual', ...more, 'tokenizer.json': '{}' });
  endpoint = await hub.listen();
  const folder = await open().hub.pathOf('org/name');
  const { config, template } = readTextFiles(folder);
  assert.equal(template, undefined);
  assert.deepEqual((JSON.parse(config) as { chat_template: unknown }).chat_template, [
    { name: 'default', template: 'usual' },
    { name: 'tool_use', template: 'with tools' },
  ]);
  assert.equal(hub.numRequests('model.jinja'), 0);
});

test('an index that points out of its folder is refused', async () => {
  hub.close();
  const index = JSON.stringify({ weight_map: { a: '../../../etc/passwd' } });
  hub = new FakeHub(goldenFolder('qwen2'), { 'model.safetensors.index.json': index });
  endpoint = await hub.listen();
  await assert.rejects(
    open().hub.pathOf('org/name'),
    /names "\.\.\/\.\.\/\.\.\/etc\/passwd", which is no file of the model/,
  );
});

test('names, and what is none', () => {
  assert.deepEqual(parseRepoName('org/name'), { repo: 'org/name', revision: 'main' });
  assert.deepEqual(parseRepoName('Qwen/Qwen3-0.6B@refs/pr/1'), { repo: 'Qwen/Qwen3-0.6B', revision: 'refs/pr/1' });
  const file = { repo: 'org/name', revision: 'main', file: 'q4/a-Q4_K_M.gguf' };
  assert.deepEqual(parseRepoName('org/name:q4/a-Q4_K_M.gguf'), file);
  assert.deepEqual(parseRepoName('org/name@v1:q4/a-Q4_K_M.gguf'), { ...file, revision: 'v1' });
  for (const text of [
    ...['org/name:a.bin', 'org/name:../a.gguf', 'org/name:a/../b.gguf', 'org/name:a//b.gguf', 'org/name:'],
    '',
    'name',
    './org/name',
    '/org/name',
    'a/b/c',
    '../name',
    'org/..',
    'a--b/c',
    'org/name@../x',
    'org/name@',
  ])
    assert.equal(parseRepoName(text), undefined, text);
});

test('progress is a bar on a terminal and lines elsewhere', () => {
  let [text, ms] = ['', 0];
  const at = (isTTY: boolean): ProgressLine => new ProgressLine({ isTTY, write: (more) => (text += more) }, () => ms);
  const show = (line: ProgressLine): void => {
    for (let i = 0; i <= 10; i++, ms += 1_000)
      line.show({ file: 'f', doneBytes: i * 2 ** 20, totalBytes: 10 * 2 ** 20 });
  };
  show(at(true));
  assert.match(text, /\[K\[#{12}\.{12}\] 50 % of 10\.0 MiB, 1\.0 MiB\/s, 5 s left: f/);
  assert(text.endsWith('100 % of 10.0 MiB, 1.0 MiB/s, 0 s left: f\n'));
  text = '';
  show(at(false));
  assert.deepEqual(
    text.split('\n').map((line) => line.slice(0, 4)),
    ['0 % ', '50 %', '100 ', ''],
  );
});

test('a blob that was cut by hand is seen before it runs', async () => {
  const folder = await open().hub.pathOf('org/name');
  const blob = join(folder, readlinkSync(join(folder, SHARD)));
  truncateSync(blob, 1_000);
  await assert.rejects(loadReference(folder, 'f32'), /is truncated/);
});

/** A safetensors file with one tensor. */
function oneTensor(name: string, numValues: number): Buffer {
  const header = JSON.stringify({ [name]: { dtype: 'F32', shape: [numValues], data_offsets: [0, 4 * numValues] } });
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, Buffer.from(header), Buffer.alloc(4 * numValues)]);
}

test('files with nothing but parts that are not served stay on the hub, and the model runs without them', async () => {
  hub.close();
  const repository = join(home, 'repository');
  cpSync(goldenFolder('qwen2'), repository, { recursive: true });
  const index = join(repository, 'model.safetensors.index.json');
  const { weight_map: weightMap } = JSON.parse(readFileSync(index, 'utf8')) as { weight_map: object };
  const more = {
    'model.visual.patch_embed.weight': 'model-00003-of-00004.safetensors',
    'mtp.layers.0.norm.weight': 'model-00004-of-00004.safetensors',
    // A file with both is read.
    'model.language_model.mtp.fc.weight': SHARD,
  };
  writeFileSync(index, JSON.stringify({ weight_map: { ...more, ...weightMap } }));
  const [vision, mtp] = [more['model.visual.patch_embed.weight'], more['mtp.layers.0.norm.weight']];
  writeFileSync(join(repository, vision), oneTensor('model.visual.patch_embed.weight', 3 << 16));
  writeFileSync(join(repository, mtp), oneTensor('mtp.layers.0.norm.weight', 1 << 16));
  hub = new FakeHub(repository);
  endpoint = await hub.listen();
  const { hub: own, notes } = open();
  const folder = await own.pathOf('org/name');
  assert.deepEqual(
    [SHARD, 'model-00002-of-00002.safetensors', vision, mtp].map((file) => hub.numRequests(file)),
    [1, 1, 0, 0],
  );
  assert.deepEqual(notes, [
    'org/name@main: 2 files with nothing but vision and multi-token prediction, 1.0 MiB, left on the hub: these parts are not served',
  ]);
  const { executable, device } = await loadReference(folder, 'f32');
  await executable.close();
  device.destroy();

  const numRequests = hub.requests.length;
  assert.equal(await own.pathOf('org/name'), folder);
  assert.equal(hub.requests.length, numRequests + 1, 'it counts as complete');
  assert.equal(notes.length, 1, 'said once');
  assert.equal(await open({ HF_HUB_OFFLINE: '1' }).hub.pathOf('org/name'), folder);
  rmSync(join(folder, SHARD));
  await assert.rejects(
    openModel(folder).then((model) => model.openWeights()),
    /model-00001-of-00002\.safetensors is missing/,
  );
  const whole = await loadReference(repository, 'f32');
  assert.match(whole.description, /left out: vision \(1 tensor\), multi-token prediction \(1 tensor\)/);
  await whole.executable.close();
  whole.device.destroy();
});

test('a GGUF file of a repository comes by its name, with all that it is split into', async () => {
  const model = readFileSync(join(goldenFolder('gguf-q8_0'), 'model.gguf'));
  hub.close();
  const folder = join(home, 'repository');
  mkdirSync(folder);
  for (const name of ['tiny-Q8_0.gguf', 'big-00001-of-00002.gguf']) writeFileSync(join(folder, name), model);
  writeFileSync(join(folder, 'big-00002-of-00002.gguf'), ggufFile({ 'split.no': 1 }));
  hub = new FakeHub(folder, {});
  endpoint = await hub.listen();
  const path = await open().hub.pathOf('org/name:tiny-Q8_0.gguf');
  assert.equal(path, cached('snapshots', COMMIT, 'tiny-Q8_0.gguf'));
  assert.equal(hub.numRequests('big-00001-of-00002.gguf'), 0, 'nothing else of it');
  const opened = await openModel(path);
  expect([opened.name, opened.config.modelType]).toEqual(['org/name:tiny-Q8_0.gguf', 'llama']);

  const big = await open().hub.pathOf('org/name@main:big-00001-of-00002.gguf');
  assert(existsSync(cached('snapshots', COMMIT, 'big-00002-of-00002.gguf')));
  assert.equal((await openModel(big)).eosTokenIds[0], 2);
  hub.close();
  assert.equal(await open().hub.pathOf('org/name:tiny-Q8_0.gguf'), path, 'what is there is found without its hub');
});

test('a file that is not there, or the second of a model, is refused with what there is', async () => {
  hub.close();
  hub = new FakeHub(goldenFolder('gguf-q8_0'), { 'README.md': 'x' });
  endpoint = await hub.listen();
  const { hub: own } = open();
  await assert.rejects(own.pathOf('org/name:other.gguf'), /has no other\.gguf; its GGUF files are: model\.gguf/);
  await assert.rejects(own.pathOf('org/name:a-00002-of-00003.gguf'), /name the first, a-00001-of-00003\.gguf/);
  await assert.rejects(own.pathOf('org/name'), /has GGUF files: name one, such as org\/name:model\.gguf/);
});
