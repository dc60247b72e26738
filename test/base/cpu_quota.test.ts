/** Cores under a container's quota, over files that a test writes: cgroup v1 and v2, nested groups, none. Budget: 1 s. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, test } from 'vitest';
import { availableCores } from '../../shared/base/cpu_quota.ts';

const folders: string[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) rmSync(folder, { recursive: true });
});

/** A root with these files. */
function rootWith(files: Readonly<Record<string, string>>): string {
  const root = mkdtempSync(join(tmpdir(), 'cgroups-'));
  folders.push(root);
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `${text}\n`);
  }
  return root;
}

const V2 = '30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate';
const v1 = (root: string): string =>
  [
    '31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory',
    `32 25 0:28 ${root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct`,
  ].join('\n');
const v2Files = (group: string, limits: Readonly<Record<string, string>>): Record<string, string> => ({
  'proc/self/cgroup': `0::${group}`,
  'proc/self/mountinfo': V2,
  ...Object.fromEntries(Object.entries(limits).map(([at, text]) => [`sys/fs/cgroup${at}/cpu.max`, text])),
});
const v1Files = (group: string, root: string, limits: Readonly<Record<string, string>>): Record<string, string> => ({
  'proc/self/cgroup': `12:memory:/elsewhere\n4:cpu,cpuacct:${group}\n1:name=systemd:/init`,
  'proc/self/mountinfo': v1(root),
  ...Object.fromEntries(
    Object.entries(limits).flatMap(([at, quota]) => [
      [`sys/fs/cgroup/cpu,cpuacct${at}/cpu.cfs_quota_us`, quota],
      [`sys/fs/cgroup/cpu,cpuacct${at}/cpu.cfs_period_us`, '100000'],
    ]),
  ),
});

test.each<readonly [string, Record<string, string>, number]>([
  ['no cgroups at all', {}, 8],
  ['v2 without a quota', v2Files('/', { '': 'max 100000' }), 8],
  ['v2, one core', v2Files('/a', { '/a': '100000 100000' }), 1],
  ['v2, two and a half', v2Files('/a', { '/a': '250000 100000' }), 2],
  ['v2, half a core', v2Files('/a', { '/a': '50000 100000' }), 1],
  ['v2, more than there are', v2Files('/a', { '/a': '6400000 100000' }), 8],
  ['v2, a group above has the smaller one', v2Files('/pod/a', { '/pod': '300000 100000', '/pod/a': 'max 100000' }), 3],
  ['v2, the group itself has the smaller one', v2Files('/p/a', { '/p': '700000 100000', '/p/a': '200000 100000' }), 2],
  ['v2, another period', v2Files('/a', { '/a': '20000 10000' }), 2],
  ['v1 without a quota', v1Files('/a', '/', { '/a': '-1' }), 8],
  ['v1, one core', v1Files('/docker/x', '/', { '/docker/x': '100000' }), 1],
  ['v1, a group above', v1Files('/docker/x', '/', { '/docker': '400000', '/docker/x': '-1' }), 4],
  ['v1, a container that sees its own group alone', v1Files('/docker/x', '/docker/x', { '': '200000' }), 2],
  ['v1, a container whose group is not below what it sees', v1Files('/kubepods/y', '/docker/x', { '': '300000' }), 3],
  ['v2, mounts that cannot be read', { 'proc/self/cgroup': '0::/', 'sys/fs/cgroup/cpu.max': '200000 100000' }, 2],
  [
    'v1, mounts that cannot be read',
    { 'proc/self/cgroup': '4:cpu,cpuacct:/', 'sys/fs/cgroup/cpu/cpu.cfs_quota_us': '300000' },
    3,
  ],
  ['v2, a quota alone', v2Files('/a', { '/a': '200000' }), 2],
  ['files that are no numbers', v2Files('/a', { '/a': 'much' }), 8],
])('%s', (_name, files, cores) => {
  assert.equal(availableCores(rootWith(files), 8), cores);
});
