/**
 * What a system can do with memory and Node has no words for, through koffi: bytes of shared memory that are copied as fast as any, and
 * memory that other processes of this host can map. A driver: only the threads that move records import it. Nothing is lost where koffi has
 * no binary for the machine, or the system is not Linux: copies are V8's then, and nothing is shared.
 */
import { randomBytes } from 'node:crypto';
import { closeSync, constants, fstatSync, ftruncateSync, openSync, readSync, statSync, writeSync } from 'node:fs';

interface Libc {
  readonly addressOf: (bytes: Uint8Array) => bigint;
  readonly view: (address: bigint, length: number) => ArrayBuffer;
  /** Linux only. */
  readonly memory: LinuxMemory | undefined;
}

interface LinuxMemory {
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

const libc = await load();

async function load(): Promise<Libc | undefined> {
  try {
    const { default: koffi } = await import('koffi');
    const addressOf = (bytes: Uint8Array): bigint => koffi.address(bytes);
    const view = (address: bigint, length: number): ArrayBuffer => koffi.view(address, length);
    // Whatever is refused is known before anything depends on it.
    const tried = new Uint8Array(new SharedArrayBuffer(16)).fill(7);
    if (new Uint8Array(view(addressOf(tried), 16))[15] !== 7) return undefined;
    if (process.platform !== 'linux') return { addressOf, view, memory: undefined };
    const own = koffi.load(null);
    const map = own.func('uint64_t mmap(uint64_t, size_t, int, int, int, int64_t)') as (...args: unknown[]) => unknown;
    const memory: LinuxMemory = {
      create: own.func('int memfd_create(const char *, unsigned int)') as LinuxMemory['create'],
      map: (...args) => BigInt(map(...args) as number | bigint),
      unmap: own.func('int munmap(uint64_t, size_t)') as LinuxMemory['unmap'],
      control: own.func('int fcntl(int, int, int)') as LinuxMemory['control'],
    };
    return { addressOf, view, memory };
  } catch {
    return undefined;
  }
}

const PAGE_BYTES = 4_096;
/** In a page of its own, before the others. */
const SECRET_BYTES = 32;
const PAGE = BigInt(PAGE_BYTES);
/** Of mmap(2), memfd_create(2) and fcntl(2) of Linux, the same on every processor that Node runs on. */
const [PROT_READ, PROT_WRITE, MAP_SHARED, MAP_FIXED, FAILED] = [1, 2, 1, 16, 2n ** 64n - 1n];
const [MFD_CLOEXEC, MFD_ALLOW_SEALING, F_ADD_SEALS, F_GET_SEALS] = [1, 2, 1_033, 1_034];
const [F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW] = [1, 2, 4];

/**
 * The same memory, not as shared: V8 copies that by the processor's widest moves, and shared memory word by word. Whoever holds what this
 * returns holds `shared` too.
 */
export function plainBytes(shared: SharedArrayBuffer): ArrayBuffer | SharedArrayBuffer {
  if (!libc || shared.byteLength === 0) return shared;
  try {
    return libc.view(libc.addressOf(new Uint8Array(shared)), shared.byteLength);
  } catch {
    // It is more than a view can be long.
    return shared;
  }
}

/** Bytes [start, end) of a buffer that others can map, whoever is told `name`. */
export interface PublishedMemory {
  readonly name: string;
  readonly start: number;
  readonly end: number;
}

/** What is published stays: whoever has mapped it may read it for as long as this process lives. */
const published: SharedArrayBuffer[] = [];

/**
 * Puts memory of a file that has no name under the whole pages of a buffer; what was in it is gone. Undefined where that cannot be done: the
 * buffer is as it was.
 */
export function publish(shared: SharedArrayBuffer): PublishedMemory | undefined {
  if (!libc?.memory) return undefined;
  const address = libc.addressOf(new Uint8Array(shared));
  const start = Number((PAGE - (address % PAGE)) % PAGE);
  const numBytes = Math.floor((shared.byteLength - start) / PAGE_BYTES) * PAGE_BYTES;
  if (numBytes <= 0) return undefined;
  const file = libc.memory.create('penstock', MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return undefined;
  // Shows whoever is told of it that both have the same.
  const secret = randomBytes(SECRET_BYTES);
  try {
    ftruncateSync(file, PAGE_BYTES + numBytes);
    writeSync(file, secret, 0, secret.length, 0);
    // Nobody who has it mapped can lose a page of it.
    if (libc.memory.control(file, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) !== 0)
      throw new Error('no seal');
    const at = address + BigInt(start);
    const mapped = libc.memory.map(at, numBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, PAGE_BYTES);
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
  readonly bytes: ArrayBuffer;
  /** Nothing of `bytes` may be touched from then on. */
  close(): void;
}

const NAME = /^(\d{1,10})\/(\d{1,10})\/(\d{1,16})\/([0-9a-f]{64})$/;

/** Undefined when it is not to be seen from here, or is not what `name` says. */
export function mapPublished(name: string): MappedMemory | undefined {
  const [, pid = '', fileNumber = '', length = '', secretHex = ''] = NAME.exec(name) ?? [];
  const memory = libc?.memory;
  if (!libc || !memory || pid === '') return undefined;
  const secret = Buffer.from(secretHex, 'hex');
  const numBytes = Number(length);
  let file: number | undefined;
  try {
    // A peer says which: nothing but a file is opened, and nothing but one that cannot get shorter is mapped.
    const path = `/proc/${pid}/fd/${fileNumber}`;
    if (!statSync(path).isFile()) return undefined;
    file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const seals = memory.control(file, F_GET_SEALS, 0);
    const found = Buffer.alloc(secret.length);
    const isSealed = seals > 0 && (seals & F_SEAL_SHRINK) !== 0;
    const isWhole = fstatSync(file).size === PAGE_BYTES + numBytes;
    if (!isSealed || !isWhole || readSync(file, found, 0, found.length, 0) !== found.length || !found.equals(secret))
      return undefined;
    const address = memory.map(0n, numBytes, PROT_READ, MAP_SHARED, file, PAGE_BYTES);
    if (address === FAILED) return undefined;
    const close = (): void => {
      memory.unmap(address, numBytes);
    };
    try {
      return { bytes: libc.view(address, numBytes), close };
    } catch {
      close();
      return undefined;
    }
  } catch {
    // It is another user's, in another container, or gone.
    return undefined;
  } finally {
    if (file !== undefined) closeSync(file);
  }
}
