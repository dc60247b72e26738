/** The file of --disk-key. Budget: 1 s. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { silentLog, type Log } from '../../shared/base/log.ts';
import { readDiskKey } from '../../services/store/disk_key.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
beforeAll(() => mkdirSync(folder.path, { recursive: true }));
afterAll(folder.remove);

const KEY = Buffer.from(Array.from({ length: 32 }, (_, i) => 7 * i + 1));

/** Reads a file with this text. @returns the key, and the warnings */
function read(text: string, mode = 0o600): { key: Uint8Array | undefined; warnings: unknown[] } {
  const path = join(folder.path, `${Buffer.from(text).toString('hex').slice(0, 60)}-${mode}`);
  writeFileSync(path, text, { mode });
  const warnings: unknown[] = [];
  const log: Log = { ...silentLog, warn: (...said: unknown[]) => void warnings.push(said) };
  return { key: readDiskKey(path, log), warnings };
}

test('32 bytes as hexadecimal digits or in base64, with white space around, are a key; no file is none', () => {
  for (const text of [
    KEY.toString('hex'),
    `  ${KEY.toString('hex').toUpperCase()}\n`,
    `${KEY.toString('base64')}\r\n`,
    KEY.toString('base64url'),
  ])
    expect(Buffer.from(read(text).key!)).toEqual(KEY);
  expect(readDiskKey('', silentLog)).toBe(undefined);
});

test('a file that is empty, too short, too long or not there is refused with the command that makes a key', () => {
  const hex = KEY.toString('hex');
  for (const text of [
    '',
    '\n',
    hex.slice(1),
    `${hex}0`,
    hex + hex,
    'g'.repeat(64),
    KEY.toString('base64').slice(2),
    'x'.repeat(5_000),
  ])
    expect(() => read(text), text).toThrow(/--disk-key .*(is empty|has no key of 32 bytes).*openssl rand -hex 32/);
  expect(() => readDiskKey(join(folder.path, 'nowhere'), silentLog)).toThrow(/ENOENT.*openssl rand -hex 32/);
  expect(() => readDiskKey(folder.path, silentLog)).toThrow(/EISDIR/);
});

test('a file that other users may read is used, with a warning; its key is in no message', () => {
  expect(read(KEY.toString('hex')).warnings).toEqual([]);
  const { key, warnings } = read(KEY.toString('hex'), 0o644);
  expect(key).toBeDefined();
  expect(JSON.stringify(warnings)).toMatch(/other users may read.*chmod 600/);
  expect(JSON.stringify(warnings)).not.toContain(KEY.toString('hex'));
});
