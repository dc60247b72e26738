/** Checks of the machine: each judges what a probe has measured, and is a pure function of it. */
import { ok, problem, sizeText, warning, type Finding } from './finding.ts';

const MIN_NODE: readonly [major: number, minor: number] = [20, 19];

/** Judges the version of Node, such as `v20.19.2`. */
export function nodeFinding(version: string): Finding {
  const [major = 0, minor = 0] = version.replace(/^v/, '').split('.').map(Number);
  const isEnough = major > MIN_NODE[0] || (major === MIN_NODE[0] && minor >= MIN_NODE[1]);
  const needed = MIN_NODE.join('.');
  if (isEnough) return ok('node', `Node ${version} is new enough: ${needed} is needed.`);
  return problem('node', `Node ${version} is too old: ${needed} is needed.`, `Install Node ${needed} or later.`);
}

/** Cores that processes may use here. */
export interface CpuMeasure {
  /** Whole cores that an engine would use. */
  readonly usable: number;
  /** Cores that the CPU quota of the container allows; Infinity without a quota. */
  readonly quota: number;
  /** Cores that the system offers to this process. */
  readonly offered: number;
}

/** Judges the cores and the CPU quota. */
export function cpuFinding({ usable, quota, offered }: CpuMeasure): Finding {
  if (quota < offered)
    return warning(
      'cpu',
      `A CPU quota of ${Number(quota.toFixed(2))} leaves ${usable} of ${offered} cores.`,
      'Raise the quota (docker --cpus, limits.cpu in Kubernetes) to a whole number of cores, or leave it out.',
    );
  if (usable < 2)
    return warning(
      'cpu',
      'There is one core: the threads of a process and its peers take turns.',
      'Give the machine or the container at least 2 cores, or run one role here.',
    );
  return ok('cpu', `${usable} cores are usable, and no quota takes any away.`);
}

/** Memory in bytes. */
export interface MemoryMeasure {
  readonly total: number;
  readonly available: number;
  /** Limit of the container; Infinity without one. */
  readonly limit: number;
}

/** Memory that a process takes besides its budgets: Node, code, threads. */
const OUTSIDE_BUDGETS = 512 * 2 ** 20;

/** Judges the memory against the `--dram-bytes` of one member. */
export function memoryFinding({ total, available, limit }: MemoryMeasure, dramBytes: number): Finding {
  const needed = dramBytes + OUTSIDE_BUDGETS;
  const bound = limit < total ? `, and the container's limit is ${sizeText(limit)}` : '';
  const text = `${sizeText(available)} of ${sizeText(total)} memory are available${bound}`;
  const room = Math.min(available, limit);
  if (room >= needed) return ok('memory', `${text}.`);
  const cure =
    'End what uses memory, raise the limit (docker --memory, limits.memory in Kubernetes), or give --dram-bytes a smaller size.';
  const short = `${text}; a member takes ${sizeText(needed)} besides its model.`;
  return room < OUTSIDE_BUDGETS ? problem('memory', short, cure) : warning('memory', short, cure);
}

/** File descriptors that a router needs besides its HTTP connections. */
const OTHER_FILES = 512;
/** Below this many descriptors a process of any role fails under load. */
const MIN_FILES = 1_024;

/** Judges the limit of open files against the `--max-connections` of a router. */
export function openFilesFinding(limit: number, maxConnections: number): Finding {
  const needed = maxConnections + OTHER_FILES;
  if (limit >= needed) return ok('open files', `A process may have ${limit} files and connections open.`);
  const text = `A process may have ${limit} files and connections open; a router with --max-connections ${maxConnections} needs ${needed}.`;
  const cure = `Raise the limit (ulimit -n ${needed}, LimitNOFILE= in systemd, docker --ulimit nofile=${needed}), or lower --max-connections.`;
  return limit < MIN_FILES ? problem('open files', text, cure) : warning('open files', text, cure);
}

/** Judges whether this process could publish memory and map it again; `platform` is that of Node. */
export function sharedMemoryFinding(platform: string, isMapped: boolean): Finding {
  if (isMapped)
    return ok('shared memory', 'Processes of this machine can share memory (memfd), so blocks move by one copy.');
  if (platform !== 'linux')
    return ok('shared memory', `Processes share no memory on ${platform}: blocks between them go through sockets.`);
  return warning(
    'shared memory',
    'Memory could not be shared (memfd_create and mmap through koffi failed): blocks go through sockets, more slowly.',
    'Allow memfd_create, mmap and /proc/PID/fd in the seccomp or AppArmor profile of the container, and reinstall the package so that koffi has its binary for this platform.',
  );
}

/** Use of an address by a socket that listens. */
export type PortUse =
  | { readonly kind: 'free' }
  /** `pid` and `title` are undefined for a process that cannot be seen from here. */
  | { readonly kind: 'used'; readonly pid: number | undefined; readonly title: string | undefined }
  | { readonly kind: 'refused'; readonly code: string };

/** Judges an address that a process would listen on; `option` is the one that sets it. */
export function portFinding(bind: string, option: string, use: PortUse): Finding {
  const check = `port ${bind.slice(bind.lastIndexOf(':') + 1)}`;
  if (use.kind === 'free') return ok(check, `${bind} (${option}) is free.`);
  if (use.kind === 'refused') {
    if (use.code === 'EACCES')
      return problem(
        check,
        `This user may not listen on ${bind} (${option}).`,
        `Choose a port from 1024 with ${option}.`,
      );
    if (use.code === 'EADDRNOTAVAIL')
      return problem(
        check,
        `${bind} (${option}) is no address of this machine.`,
        `Give ${option} an address that \`ip address\` lists, or 0.0.0.0.`,
      );
    return problem(
      check,
      `Listening on ${bind} (${option}) failed: ${use.code}.`,
      `Choose another address with ${option}.`,
    );
  }
  if (use.title?.startsWith('penstock '))
    return ok(check, `${bind} (${option}) is used by ${use.title} (process ${use.pid}).`);
  const who =
    use.pid === undefined ? 'a process that this user cannot see' : `process ${use.pid} (${use.title ?? 'no command'})`;
  return problem(
    check,
    `${bind} (${option}) is used by ${who}.`,
    `End that process, or choose another address with ${option}.`,
  );
}

/** Judges whether two options name one address: the process that listens second could not. */
export function sameAddressFindings(addresses: readonly (readonly [bind: string, option: string])[]): Finding[] {
  return addresses.flatMap(([bind, option], i) => {
    const [, earlier] = addresses.slice(0, i).find(([one]) => one === bind) ?? [];
    if (earlier === undefined) return [];
    return [
      problem(
        `port ${bind.slice(bind.lastIndexOf(':') + 1)}`,
        `${earlier} and ${option} both name ${bind}: one process could listen there.`,
        `Choose another address with ${option}.`,
      ),
    ];
  });
}
