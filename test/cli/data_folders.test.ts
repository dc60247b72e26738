/** Ownership of data folders, by processes that can be seen from here and by processes that cannot. Budget: 30 s. */
import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, test } from 'vitest';
import { bootId } from '../../shared/base/boot_id.ts';
import type { DataFolder } from '../../shared/node/role.ts';
import { dataFolders } from '../../services/cli/data_folders.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { halfOf } from '../support/long.ts';
import { until } from '../support/until.ts';

const folder = temporaryFolder();
const file = join(folder.path, 's', 'owner');
const lost: Error[] = [];
const claim = (): ReturnType<typeof dataFolders.claim> =>
  dataFolders.claim(folder.path, 's', (error) => lost.push(error));

/** Writes an owner file like that of a process in its own pid namespace or on another machine. */
function own(more: object, renewals = 0): void {
  mkdirSync(join(folder.path, 's'), { recursive: true });
  const owner = { pid: 1, start: '', namespace: 'pid:[1]', boot: bootId(), id: 'theirs', beat: renewals, ...more };
  writeFileSync(file, JSON.stringify(owner).padEnd(255).concat('\n'));
}

afterEach(() => {
  lost.length = 0;
  folder.remove();
});

test('a folder is free again when its owner lets it go, and when it has died; not while it lives', async () => {
  const first = await claim();
  first.release();
  const { pid, namespace } = JSON.parse(readFileOf(await claim())) as { pid: number; namespace: string };
  assert.equal(pid, process.pid);
  // Process 1 of this namespace lives; when it began is not known here.
  own({ namespace, start: '' }, 1);
  const start = readFileSync('/proc/1/stat', 'utf8').split(') ')[1]?.split(' ')[19];
  own({ namespace, start });
  await assert.rejects(claim(), /process 1 uses the data folder/);
  // The pid has been reused by another process since then.
  own({ namespace, start: '1' });
  (await claim()).release();
  own({ namespace, pid: 2 ** 22 + 1 });
  (await claim()).release();
  assert.deepEqual(lost, []);
});

function readFileOf(held: DataFolder): string {
  const text = readFileSync(file, 'utf8');
  held.release();
  return text;
}

test.each(
  halfOf([
    ['another pid namespace', {}],
    ['another machine', { boot: 'elsewhere' }],
  ] as const),
)(
  'of an owner in %s, the count that it raises says that it lives, and one that stands still that it does not',
  async (_, where) => {
    own(where);
    let renewals = 0;
    // eslint-disable-next-line time/speed -- the pace of another owner, late only where the claim's own timers are late too
    const beating = setInterval(() => {
      own(where, ++renewals);
    }, 200);
    await assert.rejects(claim(), /another container or machine uses the data folder/);
    clearInterval(beating);
    const held = await claim();
    held.release();
  },
);

test('an owner that stood still while another took the folder is told, and takes nothing away', async () => {
  const held = await claim();
  own({});
  await until('it is told', () => lost.length > 0);
  assert.match(lost[0]?.message ?? '', /stood still/);
  held.release();
  assert.equal((JSON.parse(readFileSync(file, 'utf8')) as { id: string }).id, 'theirs');
});

test('a claim that somebody takes away without having it is made again', async () => {
  const held = await claim();
  const owner = JSON.parse(readFileSync(file, 'utf8')) as { id: string };
  rmSync(file);
  await until('it is there again', () => existsSync(file) && readFileSync(file, 'utf8').includes(owner.id));
  assert.deepEqual(lost, []);
  held.release();
});

test('of many that want a folder whose owner is gone, one has it', async () => {
  own({ boot: 'elsewhere' });
  const claims = await Promise.allSettled(Array.from({ length: 8 }, () => claim()));
  const got = claims.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  assert.equal(got.length, 1);
  const text = readFileSync(file, 'utf8');
  await until('it renews its claim', () => readFileSync(file, 'utf8') !== text);
  assert.deepEqual(lost, []);
  got[0]?.release();
});

test('a data folder is for its user alone, also one that an earlier version made; a link out of it is left alone', async () => {
  const path = join(folder.path, 's');
  const outside = join(folder.path, 'outside');
  mkdirSync(join(path, 'lmdb'), { recursive: true });
  for (const wide of [join(path, 'lmdb', 'records'), outside]) writeFileSync(wide, 'x', { mode: 0o644 });
  chmodSync(path, 0o755);
  chmodSync(outside, 0o644);
  symlinkSync(outside, join(path, 'link'));
  const modeOf = (of: string): string => (statSync(of).mode & 0o777).toString(8);
  const held = await claim();
  assert.deepEqual([path, join(path, 'lmdb'), join(path, 'lmdb', 'records'), file].map(modeOf), [
    '700',
    '700',
    '600',
    '600',
  ]);
  assert.equal(modeOf(outside), '644');
  assert(held.narrowed.includes(join(path, 'lmdb', 'records')));
  assert.deepEqual(held.open, []);
  held.release();
  rmSync(path, { recursive: true });
  const made = await claim();
  assert.equal(modeOf(path), '700');
  assert.deepEqual([made.narrowed, made.open], [[], []], 'a new folder was never open to others');
  made.release();
  // The folder itself may be a link to another disk.
  const [real, linked] = ['real', 'linked'].map((name) => join(folder.path, name));
  assert(real !== undefined && linked !== undefined);
  mkdirSync(real);
  chmodSync(real, 0o755);
  symlinkSync(real, linked);
  const other = await dataFolders.claim(folder.path, 'linked', (error) => lost.push(error));
  assert.equal(modeOf(real), '700');
  other.release();
});
