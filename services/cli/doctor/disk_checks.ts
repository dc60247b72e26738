/** Checks of the folder in which a store keeps its blocks. */
import { msText, ok, problem, sizeText, warning, type Finding } from './finding.ts';

/** File systems by the magic number that the kernel gives, and why LMDB, which maps its file, is unsafe or pointless there. */
const FILE_SYSTEMS: Readonly<
  Record<number, { readonly name: string; readonly fault?: 'remote' | 'driver' | 'memory' | 'layered' }>
> = {
  0x6969: { name: 'NFS', fault: 'remote' },
  0x517b: { name: 'SMB', fault: 'remote' },
  0xff534d42: { name: 'CIFS', fault: 'remote' },
  0xfe534d42: { name: 'SMB 2', fault: 'remote' },
  0x00c36400: { name: 'CephFS', fault: 'remote' },
  0x5346414f: { name: 'AFS', fault: 'remote' },
  0x0bd00bd0: { name: 'Lustre', fault: 'remote' },
  0x01021997: { name: '9P', fault: 'driver' },
  0x65735546: { name: 'FUSE', fault: 'driver' },
  0x01021994: { name: 'tmpfs', fault: 'memory' },
  0x858458f6: { name: 'ramfs', fault: 'memory' },
  0x794c7630: { name: 'overlayfs', fault: 'layered' },
  0xef53: { name: 'ext4' },
  0x58465342: { name: 'XFS' },
  0x9123683e: { name: 'Btrfs' },
  0x2fc12fc1: { name: 'ZFS' },
  0xf2f52010: { name: 'F2FS' },
};

/** Measured properties of the file system below a folder. */
export interface DiskMeasure {
  /** Nearest folder that exists: the data folder, or one above it. */
  readonly folder: string;
  /** Magic number of the file system; 0 where the system has none. */
  readonly magic: number;
  readonly freeBytes: number;
  /** Median of the milliseconds of a small write with fsync; the reason as text where it failed. */
  readonly write: number | string;
}

/** A write with fsync that is slower than this delays a store's commits. */
const SLOW_WRITE_MS = 20;
/** A store with less room than this cannot open its environment. */
const MIN_FREE = 64 * 2 ** 20;

/** Judges the room, the speed and the kind of the file system of `--data-dir`; `diskBytes` is `--disk-bytes`. */
export function diskFindings(dataDir: string, measure: DiskMeasure, diskBytes: number): Finding[] {
  return [roomFinding(measure, diskBytes), writeFinding(dataDir, measure), kindFinding(measure)];
}

function roomFinding({ folder, freeBytes }: DiskMeasure, diskBytes: number): Finding {
  const check = 'disk room';
  const text = `${sizeText(freeBytes)} are free in ${folder}`;
  // A store's file may be a quarter larger than its budget.
  const needed = 1.25 * diskBytes;
  if (freeBytes >= needed) return ok(check, `${text}; a store takes ${sizeText(diskBytes)} (--disk-bytes).`);
  const cure = 'Free some space, choose another disk with --data-dir, or lower --disk-bytes (0: no disk tier).';
  const short = `${text}, less than the ${sizeText(needed)} that a store may take with --disk-bytes ${diskBytes}.`;
  return freeBytes < MIN_FREE && diskBytes > 0 ? problem(check, short, cure) : warning(check, short, cure);
}

function writeFinding(dataDir: string, { folder, write }: DiskMeasure): Finding {
  const check = 'disk writes';
  if (typeof write === 'string')
    return problem(
      check,
      `Nothing can be written to ${folder}: ${write}.`,
      `${writeCure(dataDir, write)}, or choose another folder with --data-dir.`,
    );
  const text = `A write of 4 KiB with fsync takes ${msText(write)} in ${folder}`;
  if (write <= SLOW_WRITE_MS) return ok(check, `${text}.`);
  return warning(
    check,
    `${text}: blocks are committed slowly.`,
    'Choose a local SSD with --data-dir, and keep --disk-writes behind (its default).',
  );
}

function writeCure(dataDir: string, reason: string): string {
  if (/^(ENOSPC|EDQUOT)/.test(reason)) return 'Free some space, or raise the quota of this user';
  if (reason.startsWith('EROFS')) return 'Mount the file system writable';
  if (reason.startsWith('ENOTDIR')) return `Remove the file that is where ${dataDir} needs a folder`;
  return `Make ${dataDir} with write permission for this user`;
}

function kindFinding({ folder, magic }: DiskMeasure): Finding {
  const check = 'file system';
  const { name, fault } = FILE_SYSTEMS[magic] ?? { name: `of type 0x${magic.toString(16)}` };
  const text = `${folder} is on a file system ${name}`;
  if (fault === undefined) return ok(check, `${text}.`);
  if (fault === 'remote')
    return problem(
      check,
      `${text}: LMDB maps its file into memory, which is unsafe on remote file systems.`,
      'Choose a folder on a local disk with --data-dir.',
    );
  if (fault === 'driver')
    return warning(
      check,
      `${text}: whether mapped files and locks, which LMDB needs, are sound depends on its driver.`,
      'Choose a folder on a local disk with --data-dir, unless you know that the driver supports mmap and locks.',
    );
  if (fault === 'memory')
    return warning(
      check,
      `${text}: blocks on "disk" take memory and are gone after a restart of the machine.`,
      'Choose a folder on a disk with --data-dir, or set --disk-bytes 0 and a larger --dram-bytes.',
    );
  return warning(
    check,
    `${text}, which belongs to the container: blocks are gone with it.`,
    'Mount a volume and name it with --data-dir.',
  );
}
