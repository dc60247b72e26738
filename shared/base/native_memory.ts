/**
 * Memory operations that Node lacks, through koffi: fast copies out of shared memory, and memory that other processes on this host
 * can map.
 *
 * A driver: only the threads that move records import this module. Without koffi's binary for the machine, copies are V8's and
 * nothing is shared; on a system other than Linux nothing is shared, and copies stay fast.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, constants, fstatSync, ftruncateSync, openSync, readSync, statSync, writeSync } from 'node:fs';
import type { load as loadLibrary } from 'koffi';

interface Native {
  readonly addressOf: (bytes: Uint8Array) => bigint;
  readonly view: (address: bigint, length: number) => ArrayBuffer;
  /** Linux only. */
  readonly memory: LinuxMemory | undefined;
}

interface LinuxMemory {
  readonly pageBytes: number;
  readonly create: (name: string, flags: number) => number;
  readonly map: (
    address: bigint,
    length: number,
    protection: number,
    flags: number,
    file: number,
    at: number,
  ) => bigint;
  readonly unmap: (address: bigint, length: number) => number;
  readonly control: (file: number, command: number, argument: number) => number;
}

const native = await load();

async function load(): Promise<Native | undefined> {
  try {
    const { default: koffi } = await import('koffi');
    const addressOf = (bytes: Uint8Array): bigint => koffi.address(bytes);
    const view = (address: bigint, length: number): ArrayBuffer => koffi.view(address, length);
    // Try koffi once here, so that a system that refuses it is found out before other code depends on it.
    const tried = new Uint8Array(new SharedArrayBuffer(16)).fill(7);
    if (new Uint8Array(view(addressOf(tried), 16))[15] !== 7) return undefined;
    return { addressOf, view, memory: linuxMemory(koffi) };
  } catch {
    return undefined;
  }
}

function linuxMemory({ load: open }: { readonly load: typeof loadLibrary }): LinuxMemory | undefined {
  if (process.platform !== 'linux') return undefined;
  try {
    const own = open(null);
    const map = own.func('uint64_t mmap(uint64_t, size_t, int, int, int, int64_t)') as (...args: unknown[]) => unknown;
    return {
      pageBytes: Number(own.func('int getpagesize()')()),
      create: own.func('int memfd_create(const char *, unsigned int)') as LinuxMemory['create'],
      map: (...args) => BigInt(map(...args) as number | bigint),
      unmap: own.func('int munmap(uint64_t, size_t)') as LinuxMemory['unmap'],
      control: own.func('int fcntl(int, int, int)') as LinuxMemory['control'],
    };
  } catch {
    // A C library without one of them.
    return undefined;
  }
}

/** Length of the secret in bytes. The secret fills the start of the file's first page; the shared pages follow it. */
const SECRET_BYTES = 32;
/** Constants of mmap(2), memfd_create(2) and fcntl(2) on Linux, the same on every processor that Node runs on. */
const [PROT_READ, PROT_WRITE, MAP_SHARED, MAP_FIXED, FAILED] = [1, 2, 1, 16, 2n ** 64n - 1n];
const [MFD_CLOEXEC, MFD_ALLOW_SEALING, F_ADD_SEALS, F_GET_SEALS] = [1, 2, 1_033, 1_034];
const [F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW] = [1, 2, 4];

/**
 * Byte distance between the views of a large memory. Node's views have at most 4 GiB (koffi ends the process over a longer one), so
 * larger memory gets several overlapping views; a range of at most MAX_PART bytes always lies within one of them.
 */
const VIEW_STRIDE = 2 ** 31;
const MAX_PART = 2 ** 30;

/** Bytes of memory from `start` on, at most MAX_PART of them. @throws RangeError when there are not so many. */
export type BytesAt = (start: number, length: number) => Uint8Array;

function bytesOf({ view }: Native, address: bigint, numBytes: number): BytesAt {
  const views = Array.from({ length: Math.ceil(numBytes / VIEW_STRIDE) }, (_, i) => {
    const start = i * VIEW_STRIDE;
    return view(address + BigInt(start), Math.min(VIEW_STRIDE + MAX_PART, numBytes - start));
  });
  return (start, length) => {
    const found = views[Math.floor(start / VIEW_STRIDE)];
    if (!found) throw new RangeError(`there is no byte ${start} of ${numBytes}`);
    return new Uint8Array(found, start % VIEW_STRIDE, length);
  };
}

/**
 * Returns the bytes of a shared buffer as if they were not shared: V8 copies such memory with the processor's widest moves, but shared
 * memory word by word. The caller keeps `shared` alive as long as it uses the result.
 */
export function plainBytes(shared: SharedArrayBuffer): BytesAt {
  if (!native || shared.byteLength === 0) return (start, length) => new Uint8Array(shared, start, length);
  return bytesOf(native, native.addressOf(new Uint8Array(shared, 0, 1)), shared.byteLength);
}

/** Bytes [start, end) of a buffer that another process on this host can map, if it is sent `name`. */
export interface PublishedMemory {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** Published buffers, kept alive: a process that has mapped one may read it for as long as this process lives. */
const published: SharedArrayBuffer[] = [];

/**
 * Replaces the whole pages of a buffer by memory of an anonymous file (memfd), which other processes can map; the previous content is
 * lost. Returns undefined, with the buffer unchanged, where that fails.
 */
export function publish(shared: SharedArrayBuffer): PublishedMemory | undefined {
  const memory = native?.memory;
  if (!memory || shared.byteLength === 0) return undefined;
  const { pageBytes } = memory;
  const address = native.addressOf(new Uint8Array(shared, 0, 1));
  const start = Number(-address & BigInt(pageBytes - 1));
  const numBytes = Math.floor((shared.byteLength - start) / pageBytes) * pageBytes;
  if (numBytes <= 0) return undefined;
  const file = memory.create('penstock', MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return undefined;
  // A process that maps the file compares the secret, to be sure that it has the memory that was published.
  const secret = randomBytes(SECRET_BYTES);
  try {
    ftruncateSync(file, pageBytes + numBytes);
    writeSync(file, secret, 0, secret.length, 0);
    // The seals fix the size: a mapped page can never vanish under a reader.
    if (memory.control(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) !== 0) throw new Error('no seal');
    const at = address + BigInt(start);
    const mapped = memory.map(at, numBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, pageBytes);
    if (mapped !== at) throw new Error('not mapped');
  } catch {
    closeSync(file);
    return undefined;
  }
  published.push(shared);
  return { name: `${process.pid}/${file}/${numBytes}/${secret.toString('hex')}`, start, end: start + numBytes };
}

/** Another process's memory, to be read. */
export interface MappedMemory {
  readonly numBytes: number;
  readonly bytes: BytesAt;
  /** Unmaps the memory. Its bytes must not be touched afterwards. */
  close(): void;
}

const NAME = /^(\d{1,10})\/(\d{1,10})\/(\d{1,16})\/([0-9a-f]{64})$/;

/**
 * Maps the memory that another process published as `name`, read-only. Returns undefined when the memory cannot be opened from here,
 * or its seal, size or secret does not match.
 */
export function mapPublished(name: string): MappedMemory | undefined {
  const [, pid = '', fileNumber = '', length = '', secretHex = ''] = NAME.exec(name) ?? [];
  const memory = native?.memory;
  if (!memory || pid === '') return undefined;
  const { pageBytes } = memory;
  const secret = Buffer.from(secretHex, 'hex');
  const numBytes = Number(length);
  let file: number | undefined;
  try {
    // The name comes from a peer: open only a regular file, and map only one that is sealed against shrinking.
    const path = `/proc/${pid}/fd/${fileNumber}`;
    if (!statSync(path).isFile()) return undefined;
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const seals = memory.control(file, F_GET_SEALS, 0);
    const found = Buffer.alloc(secret.length);
    const isSealed = seals > 0 && (seals & F_SEAL_SHRINK) !== 0;
    const isWhole = fstatSync(file).size === pageBytes + numBytes;
    if (!isSealed || !isWhole || readSync(file, found, 0, found.length, 0) !== found.length || !found.equals(secret))
      return undefined;
    const address = memory.map(0n, numBytes, PROT_READ, MAP_SHARED, file, pageBytes);
    if (address === FAILED) return undefined;
    const close = (): void => {
      memory.unmap(address, numBytes);
    };
    try {
      return { numBytes, bytes: bytesOf(native, address, numBytes), close };
    } catch {
      close();
      return undefined;
    }
  } catch {
    // The memory belongs to another user, lies in another container, or is gone.
    return undefined;
  } finally {
    if (file !== undefined) closeSync(file);
  }
}
