/**
 * How many cores this process may use: those of the machine, less what a container's CPU quota (cgroup v1 or v2) takes away.
 * Node's `availableParallelism` sees CPU sets and not quotas.
 */
import { readFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { posix } from 'node:path';

/** A mounted cgroup hierarchy, as /proc/self/mountinfo has it. */
interface CgroupMount {
  /** The group that the mount point shows: `/`, or the container's own. */
  readonly root: string;
  readonly point: string;
  readonly isV2: boolean;
}

/**
 * Whole cores, at least one. A quota of 1.5 cores is one thread: a second one would be stopped for half of its time, and the threads of
 * a step wait for each other.
 * @param files the folder that holds `proc` and the mount points; tests have one of their own
 */
export function availableCores(files = '/', numCores = availableParallelism()): number {
  return Math.max(1, Math.floor(Math.min(numCores, cpuQuota(files))));
}

/** Returns the cores that the quotas of this process's groups allow, the smallest of them; Infinity without a quota. */
export function cpuQuota(files = '/'): number {
  const groups = groupsOf(read(files, '/proc/self/cgroup'));
  const mounts = cgroupMounts(read(files, '/proc/self/mountinfo'));
  const quotas = (mounts.length > 0 ? mounts : usualMounts).flatMap(({ root, point, isV2 }) => {
    const group = isV2 ? groups.v2 : groups.v1;
    if (group === undefined) return [];
    return foldersOf(group, root, point).map((folder) => (isV2 ? quotaV2(files, folder) : quotaV1(files, folder)));
  });
  return Math.min(Infinity, ...quotas);
}

function read(files: string, path: string): string {
  try {
    return readFileSync(posix.join(files, path), 'utf8');
  } catch {
    // Another operating system, a kernel without cgroups, or a group without this file.
    return '';
  }
}

/** The groups of this process that bound its CPU time. Lines are `ID:CONTROLLERS:PATH`, with ID 0 and no controllers for v2. */
function groupsOf(text: string): { readonly v1: string | undefined; readonly v2: string | undefined } {
  const lines = text.split('\n').map((line) => /^(\d+):([^:]*):(.*)$/.exec(line));
  return {
    v1: lines.find((line) => line?.[2]?.split(',').includes('cpu'))?.[3],
    v2: lines.find((line) => line?.[1] === '0' && line[2] === '')?.[3],
  };
}

/** Usual mount points of the CPU controllers, for hosts whose list of mounts cannot be read. */
const usualMounts: readonly CgroupMount[] = [
  { root: '/', point: '/sys/fs/cgroup', isV2: true },
  { root: '/', point: '/sys/fs/cgroup/cpu', isV2: false },
  { root: '/', point: '/sys/fs/cgroup/cpu,cpuacct', isV2: false },
];
/** Quota period in microseconds where the group's files name none. */
const USUAL_PERIOD = '100000';

/** Lines are `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS] - TYPE SOURCE SUPER_OPTIONS`; a space in a path is `\040`. */
function cgroupMounts(text: string): CgroupMount[] {
  return text.split('\n').flatMap((line): CgroupMount[] => {
    const [mount = '', system = ''] = line.split(' - ');
    const [, , , root = '', point = ''] = mount.split(' ').map(unescaped);
    const [type = '', , options = ''] = system.split(' ');
    if (type === 'cgroup2') return [{ root, point, isV2: true }];
    return type === 'cgroup' && options.split(',').includes('cpu') ? [{ root, point, isV2: false }] : [];
  });
}

function unescaped(path: string): string {
  return path.replaceAll(/\\([0-7]{3})/g, (_, code: string) => String.fromCharCode(Number.parseInt(code, 8)));
}

/** The group's folder and those of the groups above it, up to the mount point: each may have a quota. */
function foldersOf(group: string, root: string, point: string): string[] {
  const below = posix.relative(root, group);
  // A container that sees its group by the host's name has that group at the mount point itself.
  const parts = below.startsWith('..') ? [] : below.split('/').filter((part) => part !== '');
  return [...parts, ''].map((_, depth) => posix.join(point, ...parts.slice(0, depth)));
}

/** `cpu.max` is `QUOTA PERIOD` in µs, or `max PERIOD`. */
function quotaV2(files: string, folder: string): number {
  const [quota = '', period = USUAL_PERIOD] = read(files, posix.join(folder, 'cpu.max')).trim().split(/\s+/);
  return ratio(quota, period);
}

/** A quota of -1 is none. */
function quotaV1(files: string, folder: string): number {
  const text = (name: string): string => read(files, posix.join(folder, name)).trim();
  return ratio(text('cpu.cfs_quota_us'), text('cpu.cfs_period_us') || USUAL_PERIOD);
}

function ratio(quota: string, period: string): number {
  const cores = /^\d+$/.test(quota) && /^\d+$/.test(period) ? Number(quota) / Number(period) : Infinity;
  return cores > 0 ? cores : Infinity;
}
