/**
 * Rounds of random damage to a store's files, while it is down and while it runs. Each time the store serves within seconds of its
 * start, its disk is open again unless it was damaged while it ran, and no answer is wrong.
 */
import assert from 'node:assert/strict';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import type { Random } from '../../../shared/base/random.ts';
import { Cluster, temporaryFolder } from '../../support/cluster.ts';
import { until } from '../../support/until.ts';
import { StoreProcess } from './store_process.ts';
import { ask, knownCases, type Answer, type KnownCase } from './load.ts';

const PAGE = 4_096;

/** Damages of a folder's files, by name. `file` is data.mdb, or the file of records. */
export const damages: Readonly<Record<string, (folder: string, file: string, random: Random) => void>> = {
  'twenty pages of rubbish': (_folder, file, random) => {
    writePages(file, random, 20, (page) => {
      for (let i = 0; i < page.length; i += 4) page.writeUInt32LE(random.u32(), i);
    });
  },
  'flipped bits': (_folder, file, random) => {
    writePages(file, random, 40, (page) => {
      const at = random.below(page.length);
      page[at] = (page[at] ?? 0) ^ (1 << random.below(8));
    });
  },
  'pages of zeros': (_folder, file, random) => {
    writePages(file, random, 20, (page) => page.fill(0));
  },
  'pages exchanged': (_folder, file, random) => {
    writePages(file, random, 12, (page) => {
      const other = readPage(file, random.below(Math.max(1, Math.floor(statSync(file).size / PAGE))));
      other.copy(page);
    });
  },
  'damaged meta pages': (_folder, file, random) => {
    const handle = openSync(file, 'r+');
    const bytes = Buffer.alloc(64);
    for (let i = 0; i < bytes.length; i += 4) bytes.writeUInt32LE(random.u32(), i);
    // After the magic number and the version, so that it still looks like an environment.
    writeSync(handle, bytes, 0, bytes.length, 32);
    writeSync(handle, bytes, 0, bytes.length, PAGE + 32);
    closeSync(handle);
  },
  'cut off in the middle': (_folder, file, random) => {
    truncateSync(file, random.below(Math.max(1, statSync(file).size)));
  },
  'cut off at a page': (_folder, file, random) => {
    truncateSync(file, PAGE * random.below(Math.max(1, Math.floor(statSync(file).size / PAGE))));
  },
  empty: (_folder, file) => {
    truncateSync(file, 0);
  },
  'no environment at all': (_folder, file) => {
    writeFileSync(file, 'this is no database');
  },
  'a folder in its place': (_folder, file) => {
    rmSync(file);
    mkdirSync(file);
  },
  'a file in the place of its folder': (folder) => {
    rmSync(folder, { recursive: true, force: true });
    writeFileSync(folder, 'not a folder');
  },
  'a lock file of rubbish': (folder, _file, random) => {
    writeFileSync(join(folder, 'lock.mdb'), Buffer.alloc(8_192, random.below(256)));
  },
  gone: (folder) => {
    rmSync(folder, { recursive: true, force: true });
  },
};

/** LMDB maps the file that is open; these replace or lose it, which a running process does not see. */
const ONLY_WHILE_DOWN = new Set(['a folder in its place', 'a file in the place of its folder', 'gone']);

function readPage(file: string, index: number): Buffer {
  const page = Buffer.alloc(PAGE);
  const handle = openSync(file, 'r');
  readSync(handle, page, 0, PAGE, index * PAGE);
  closeSync(handle);
  return page;
}

function writePages(file: string, random: Random, count: number, change: (page: Buffer) => void): void {
  const numPages = Math.floor(statSync(file).size / PAGE);
  const handle = openSync(file, 'r+');
  for (let i = 0; i < count && numPages > 2; i++) {
    const index = 2 + random.below(numPages - 2);
    const page = readPage(file, index);
    change(page);
    writeSync(handle, page, 0, PAGE, index * PAGE);
  }
  closeSync(handle);
}

/** Writes a disk key to a file of this folder, and returns its path. */
function diskKeyIn(folder: string): string {
  const file = join(folder, 'disk-key');
  writeFileSync(file, 'c3'.repeat(32), { mode: 0o600 });
  return file;
}

export interface DamageResult {
  readonly rounds: readonly { readonly what: string; readonly startMs: number }[];
  readonly answers: readonly Answer[];
  /** How often damage was noticed and the environment starts again empty. */
  readonly numSetAside: number;
}

/**
 * Damages the files of a store again and again. With `isSealed` its records are under a disk key, and clients have keys, so that there are
 * records of several tenants; without, neither.
 */
export async function runDamage(numRounds: number, random: Random, isSealed: boolean): Promise<DamageResult> {
  const token = 'damage-test-token';
  const folder = temporaryFolder();
  const environment = join(folder.path, 'victim', 'lmdb');
  const cases = (await knownCases(24, random)).filter(({ prompt }) => prompt.length > 64);
  // Few device blocks and little host memory: what was asked before comes from the store, and most of it from its disk.
  const args = [
    ...['--prefill', '0', '--decode', '1', '--store', '0', '--cluster-token', token],
    ...['--kv-blocks', '70', '--dram-bytes', '2MiB'],
  ];
  const cluster = await (isSealed ? Cluster.upWithKeys(...args) : Cluster.up(...args));
  const options = ['--dram-bytes', '1MiB', ...(isSealed ? ['--disk-key', diskKeyIn(folder.path)] : [])];
  const rounds: { what: string; startMs: number }[] = [];
  const answers: Answer[] = [];
  const log: string[] = [];
  let store = new StoreProcess(cluster, folder.path, token, log, options);
  const fill = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) {
      const one = cases[random.below(cases.length)] as KnownCase;
      answers.push(await ask(cluster, one, false));
    }
  };
  try {
    await store.ready();
    await fill(12);
    const names = Object.keys(damages);
    for (let round = 0; round < numRounds; round++) {
      const name = names[round % names.length] ?? '';
      const isLive = !ONLY_WHILE_DOWN.has(name) && random.chance(1, 3);
      if (!isLive) await store.kill();
      strike(environment, name, random);
      if (!isLive) store = new StoreProcess(cluster, folder.path, token, log, options);
      const startMs = isLive ? 0 : await store.ready();
      await fill(4);
      assert(!store.hasEnded, `the store ended after ${name}:\n${log.slice(-10).join('\n')}`);
      await until('the store is in the pool, with a disk that is open', async () => {
        const node = (await cluster.pool()).find(({ pid }) => pid === store.pid);
        return node !== undefined && (isLive || node.tiers['disk']?.fault === null);
      });
      rounds.push({ what: `${name}${isLive ? ', while it ran' : ''}`, startMs });
    }
  } finally {
    await store.kill();
    await cluster.close();
    folder.remove();
  }
  return {
    rounds,
    answers,
    numSetAside: log.filter((line) => line.includes('starts again empty') || line.includes('set aside')).length,
  };
}

function strike(environment: string, name: string, random: Random): void {
  const file = join(environment, 'data.mdb');
  // A round may have left none; what is set aside will do.
  if (!existsSync(file) && readdirSync(join(environment, '..')).includes('lmdb.damaged')) {
    rmSync(environment, { recursive: true, force: true });
    renameSync(`${environment}.damaged`, environment);
  }
  if (!existsSync(file) || !statSync(file).isFile()) return;
  const records = join(environment, 'records');
  damages[name]?.(environment, existsSync(records) && random.chance(1, 3) ? records : file, random);
}
