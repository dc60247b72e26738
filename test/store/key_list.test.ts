/** Seals, and the list of keys: no seal is made twice, the list is whole or refused, and bounded. Budget: 10 s. */
import assert from 'node:assert/strict';
import { linkSync, mkdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { SHARED, tenantIdOf, type TenantId } from '../../shared/kv/block_key.ts';
import { KeyList, MAX_KEYS } from '../../services/store/key_list.ts';
import { seal, SEAL_BYTES, unseal } from '../../services/store/sealed_box.ts';
import { temporaryFolder } from '../support/cluster.ts';

const KEY = Buffer.alloc(32, 7);
const folder = temporaryFolder();
const path = join(folder.path, 'lmdb.keys');
beforeEach(() => {
  folder.remove();
  mkdirSync(folder.path);
});
afterEach(folder.remove);

/** Tenants with a number for a name, `a` and `b`: all have records. */
const allUsed = (): Set<TenantId> =>
  new Set([
    SHARED,
    ...['a', 'b'].map(tenantIdOf),
    ...Array.from({ length: MAX_KEYS }, (_, i) => tenantIdOf(String(i))),
  ]);

test('a text sealed twice has another salt, nonce and ciphertext, and opens under its own key and data alone', () => {
  const [aad, text] = [Buffer.from('data'), Buffer.alloc(100, 1)];
  const seals = Array.from({ length: 200 }, () => seal(KEY, aad, text));
  expect(new Set(seals.map((one) => one.toString('hex', 0, 28))).size).toBe(200);
  expect(new Set(seals.map((one) => one.toString('hex', SEAL_BYTES))).size).toBe(200);
  for (const one of seals) assert(unseal(KEY, aad, one)?.equals(text));
  const [sealed] = seals;
  expect(unseal(Buffer.alloc(32, 8), aad, sealed!)).toBe(undefined);
  expect(unseal(KEY, Buffer.from('Data'), sealed!)).toBe(undefined);
  expect(unseal(KEY, aad, sealed!.subarray(0, -1))).toBe(undefined);
  for (let bit = 0; bit < sealed!.length * 8; bit++) {
    sealed![bit >> 3]! ^= 1 << (bit & 7);
    expect(unseal(KEY, aad, sealed!), `bit ${bit}`).toBe(undefined);
    sealed![bit >> 3]! ^= 1 << (bit & 7);
  }
});

test('a tenant keeps its key over restarts, and gets another after it was forgotten; the old list is overwritten', () => {
  const [a, b] = [tenantIdOf('a'), tenantIdOf('b')];
  const list = KeyList.create(path, KEY);
  list.make(new Set([a, b, SHARED]), allUsed);
  const again = KeyList.read(path, KEY);
  for (const tenant of [a, b, SHARED]) expect(again.byTenant(tenant)).toEqual(list.byTenant(tenant));
  const keys = [a, b, SHARED].map((tenant) => list.byTenant(tenant)!.key.toString('hex'));
  expect(new Set(keys).size).toBe(3);
  const old = join(folder.path, 'old');
  linkSync(path, old);
  expect(again.forget(a)).toBe(true);
  expect(again.forget(a)).toBe(false);
  assert(
    readFileSync(old).every((byte) => byte === 0),
    'the old list is gone',
  );
  const after = KeyList.read(path, KEY);
  expect([after.byTenant(a), after.byNumber(list.byTenant(a)!.number), after.size]).toEqual([undefined, undefined, 2]);
  after.make(new Set([a]), allUsed);
  expect(after.byTenant(a)!.key.toString('hex')).not.toBe(keys[0]);
  expect(after.byTenant(a)!.number).not.toBe(list.byTenant(a)!.number);
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

test('no name of a tenant and no key is in the file; each cut and each flipped bit is noticed', () => {
  const list = KeyList.create(path, KEY);
  list.make(new Set([tenantIdOf('a'), tenantIdOf('b')]), allUsed);
  const file = readFileSync(path);
  for (const tenant of ['a', 'b']) {
    expect(file.includes(Buffer.from(tenantIdOf(tenant), 'hex'))).toBe(false);
    expect(file.includes(list.byTenant(tenantIdOf(tenant))!.key)).toBe(false);
  }
  expect(file.includes(KEY)).toBe(false);
  expect(() => KeyList.read(path, Buffer.alloc(32, 8))).toThrow(/under another key/);
});

test('the list has room for MAX_KEYS tenants; then those without records make room, and else a tenant gets none (P1)', () => {
  const list = KeyList.create(path, KEY);
  const many = Array.from({ length: MAX_KEYS }, (_, i) => tenantIdOf(String(i)));
  list.make(new Set(many), allUsed);
  expect(list.size).toBe(MAX_KEYS);
  const late = tenantIdOf('late');
  list.make(new Set([late]), allUsed);
  expect([list.size, list.byTenant(late)]).toEqual([MAX_KEYS, undefined]);
  const used = new Set<TenantId>(many.slice(0, 10));
  list.make(new Set([late]), () => used);
  expect([list.size, list.byTenant(late) !== undefined]).toEqual([11, true]);
  expect(KeyList.read(path, KEY).size).toBe(11);
});

test('a list that cannot be written stays as it was', () => {
  const list = KeyList.create(path, KEY);
  list.make(new Set([tenantIdOf('a')]), allUsed);
  rmSync(folder.path, { recursive: true });
  expect(() => {
    list.make(new Set([tenantIdOf('b')]), allUsed);
  }).toThrow(/ENOENT/);
  expect(() => list.forget(tenantIdOf('a'))).toThrow(/ENOENT/);
  expect([list.size, list.byTenant(tenantIdOf('b'))]).toEqual([1, undefined]);
});
