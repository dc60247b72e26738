/** Kept cluster tokens: whose they are, who may read them, and that those of ended clusters are not used. Budget: 2 s. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, test } from 'vitest';
import { ClusterTokens } from '../../services/cli/cluster_tokens.ts';
import { temporaryFolder } from '../support/cluster.ts';

const folder = temporaryFolder();
const path = join(folder.path, 'deep', 'clusters');
const running = new Set([process.pid]);
const tokens = new ClusterTokens(path, { pid: process.pid, isRunning: (pid) => running.has(pid) });

afterEach(() => {
  running.add(process.pid);
  folder.remove();
});

test('each address has its own token, under any name of this machine, until it is removed', () => {
  const removeFirst = tokens.keep('127.0.0.1:8001', 'first');
  const removeSecond = tokens.keep('[::]:9001', 'second');
  assert.equal(tokens.find('localhost:8001').token, 'first');
  assert.equal(tokens.find('127.0.0.1:9001').token, 'second');
  assert.equal(tokens.find('127.0.0.2:8001').token, '');
  assert.match(tokens.find('127.0.0.2:8001').hint, /no `penstock up` of this user has left one in .*127\.0\.0\.2_8001/);
  removeFirst();
  assert.equal(tokens.find('127.0.0.1:8001').token, '');
  assert.equal(tokens.find('127.0.0.1:9001').token, 'second');
  removeSecond();
  assert.deepEqual(readdirSync(path), []);
});

test('only the owner may read a file or list the folder, also where one was there before', () => {
  tokens.keep('127.0.0.1:8001', 'first');
  const file = join(path, '127.0.0.1_8001.json');
  const modeOf = (one: string): string => (statSync(one).mode & 0o777).toString(8);
  assert.deepEqual([modeOf(file), modeOf(path)], ['600', '700']);
  folder.remove();
  tokens.keep('127.0.0.1:8002', 'other');
  writeFileSync(file, 'theirs', { mode: 0o644 });
  tokens.keep('127.0.0.1:8001', 'second');
  assert.equal(modeOf(file), '600');
  assert.equal(tokens.find('127.0.0.1:8001').token, 'second');
});

test('the token of a cluster that has ended is not used, the message names its file and not the token', () => {
  tokens.keep('127.0.0.1:8001', 'secret');
  running.clear();
  const { token, hint } = tokens.find('127.0.0.1:8001');
  assert.equal(token, '');
  assert.match(hint, /set PENSTOCK_CLUSTER_TOKEN .*127\.0\.0\.1_8001\.json \(process \d+\) has ended/);
  assert(!hint.includes('secret'));
  // The next cluster removes it, and not those of other containers and machines.
  const elsewhere = join(path, '127.0.0.1_7001.json');
  const kept = JSON.parse(readFileSync(join(path, '127.0.0.1_8001.json'), 'utf8')) as object;
  writeFileSync(elsewhere, JSON.stringify({ ...kept, address: '127.0.0.1:7001', boot: 'another' }));
  tokens.keep('127.0.0.1:9001', 'other');
  assert(!existsSync(join(path, '127.0.0.1_8001.json')));
  assert(existsSync(elsewhere));
  running.add(process.pid);
  assert.equal(tokens.find('127.0.0.1:7001').token, '');
  assert.match(tokens.find('127.0.0.1:7001').hint, /is of another container or machine/);
});

test('a pid that another process has by now is no running cluster, and a later cluster keeps its file', () => {
  const removeFirst = tokens.keep('127.0.0.1:8001', 'first');
  const removeSecond = tokens.keep('127.0.0.1:8001', 'second');
  removeFirst();
  assert.equal(tokens.find('127.0.0.1:8001').token, 'second');
  const file = join(path, '127.0.0.1_8001.json');
  const kept = JSON.parse(readFileSync(file, 'utf8')) as object;
  writeFileSync(file, JSON.stringify({ ...kept, start: '1' }));
  assert.equal(tokens.find('127.0.0.1:8001').token, '');
  removeSecond();
  assert(existsSync(file));
});
