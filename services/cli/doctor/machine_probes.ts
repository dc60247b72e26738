/** Measures this machine for `penstock doctor`; machine_checks.ts, disk_checks.ts and device_checks.ts judge the results. */
import { execFile } from 'node:child_process';
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  writeSync,
} from 'node:fs';
import { statfs } from 'node:fs/promises';
import { availableParallelism, freemem, tmpdir, totalmem } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { systemClock } from '../../../shared/base/clock.ts';
import { availableCores, cpuQuota } from '../../../shared/base/cpu_quota.ts';
import { messageOf } from '../../../shared/base/failure.ts';
import { mapPublished, publish } from '../../../shared/base/native_memory.ts';
import type { DevicesMeasure } from './device_checks.ts';
import type { DiskMeasure } from './disk_checks.ts';
import type { CpuMeasure, MemoryMeasure, PortUse } from './machine_checks.ts';
import { listenError } from '../port_trial.ts';

/** Milliseconds for all trials of devices. Shader compilers of software drivers need seconds. */
const DEVICES_MS = 90_000;
/** Writes of which the median counts. */
const NUM_WRITES = 9;
const WRITE_BYTES = 4_096;
/** Processes whose open files are looked through for the owner of a port (P1). */
const MAX_PROCESSES = 4_096;

/** Measures the cores that this process may use. */
export function measureCpu(): CpuMeasure {
  return { usable: availableCores(), quota: cpuQuota(), offered: availableParallelism() };
}

/** Measures the memory, and the limit of the container. */
export function measureMemory(): MemoryMeasure {
  const total = totalmem();
  const available =
    Number(/^MemAvailable:\s+(\d+) kB$/m.exec(textOf('/proc/meminfo'))?.[1] ?? freemem() / 1_024) * 1_024;
  // Absent or beyond any memory where there is no limit.
  const constrained = process.constrainedMemory() || Infinity;
  return { total, available, limit: constrained < total ? constrained : Infinity };
}

/** Returns how many files this process may have open; Infinity where the system does not say. */
export function measureOpenFiles(): number {
  const soft = /^Max open files\s+(\d+|unlimited)/m.exec(textOf('/proc/self/limits'))?.[1];
  return soft === undefined || soft === 'unlimited' ? Infinity : Number(soft);
}

/** Whether memory of this process can be published, and mapped by its name with the same content. */
export function canShareMemory(): boolean {
  const memory = new SharedArrayBuffer(2 ** 18);
  const published = publish(memory);
  if (!published) return false;
  new Uint8Array(memory)[published.start] = 77;
  const mapped = mapPublished(published.name);
  const isSame = mapped?.bytes(0, 1)[0] === 77;
  mapped?.close();
  return isSame;
}

/** Listens on an address for a moment, and finds out who uses it where that fails. */
export async function measurePort(bind: string): Promise<PortUse> {
  const code = await listenError(bind);
  if (code === undefined) return { kind: 'free' };
  return code === 'EADDRINUSE'
    ? { kind: 'used', ...ownerOf(Number(bind.slice(bind.lastIndexOf(':') + 1))) }
    : { kind: 'refused', code };
}

/** Measures the file system of the folder, or of the nearest one above it that exists; writes and removes a small file there. */
export async function measureDisk(dataDir: string): Promise<DiskMeasure> {
  let folder = resolve(dataDir);
  while (!existsSync(folder) && dirname(folder) !== folder) folder = dirname(folder);
  const { type: magic, bavail, bsize } = await statfs(folder);
  return { folder, magic, freeBytes: bavail * bsize, write: writeMs(folder) };
}

function writeMs(folder: string): number | string {
  try {
    const own = mkdtempSync(join(folder, '.penstock-doctor-'));
    try {
      const file = openSync(join(own, 'write'), 'w');
      const times: number[] = [];
      for (let i = 0; i < NUM_WRITES; i++) {
        const startMs = systemClock.nowMs();
        writeSync(file, new Uint8Array(WRITE_BYTES).fill(i));
        fsyncSync(file);
        times.push(systemClock.nowMs() - startMs);
      }
      closeSync(file);
      return times.sort((a, b) => a - b)[NUM_WRITES >> 1] ?? 0;
    } finally {
      rmSync(own, { recursive: true, force: true });
    }
  } catch (error) {
    return messageOf(error);
  }
}

/** Runs `penstock devices --json` as a process of its own, which a driver may crash. Returns the reason as text where it fails. */
export function measureDevices(): Promise<DevicesMeasure | string> {
  const command = fileURLToPath(new URL('../main.js', import.meta.url));
  return new Promise((done) => {
    const options = { timeout: DEVICES_MS, killSignal: 'SIGKILL', cwd: tmpdir() } as const;
    execFile(process.execPath, [command, 'devices', '--json'], options, (error, output) => {
      if (!error) done(JSON.parse(output) as DevicesMeasure);
      else if (error.killed) done(`\`penstock devices\` did not end within ${DEVICES_MS / 1_000} s`);
      else done(`\`penstock devices\` ended with ${error.signal ?? `exit code ${error.code ?? 'unknown'}`}`);
    });
  });
}

/** Returns the GPU device files of this system. */
export function deviceFiles(): string[] {
  const list = (folder: string, name: RegExp): string[] => {
    try {
      return readdirSync(folder)
        .filter((one) => name.test(one))
        .map((one) => join(folder, one));
    } catch {
      return [];
    }
  };
  return [...list('/dev', /^nvidia\d+$/), ...list('/dev/dri', /^renderD\d+$/)];
}

/** Returns the process that listens on the port; without values where none can be seen, for instance one of another user. */
function ownerOf(port: number): { readonly pid: number | undefined; readonly title: string | undefined } {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  const LISTENING = '0A';
  // Lines are `sl local_address rem_address st … inode`, with the port in hexadecimal after the address.
  const inodes = ['/proc/net/tcp', '/proc/net/tcp6'].flatMap((file) =>
    textOf(file)
      .split('\n')
      .map((line) => line.trim().split(/\s+/))
      .filter(([, local = '', , state]) => local.endsWith(`:${hex}`) && state === LISTENING)
      .map((fields) => fields[9]),
  );
  const links = new Set(inodes.map((inode) => `socket:[${inode}]`));
  const pids = linksIn('/proc').filter((name) => /^\d+$/.test(name));
  const pid = pids.slice(0, MAX_PROCESSES).find((one) => {
    const folder = `/proc/${one}/fd`;
    return linksIn(folder).some((file) => links.has(targetOf(join(folder, file))));
  });
  if (pid === undefined) return { pid: undefined, title: undefined };
  const title = textOf(`/proc/${pid}/cmdline`).replaceAll('\0', ' ').trim();
  return { pid: Number(pid), title: title === '' ? undefined : title };
}

function linksIn(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    // The process has ended, or belongs to another user.
    return [];
  }
}

function targetOf(link: string): string {
  try {
    return readlinkSync(link);
  } catch {
    return '';
  }
}

function textOf(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    // Another operating system.
    return '';
  }
}
