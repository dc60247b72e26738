/** Processes that show a real nats-server the password of a file, which is replaced while they run. Budget: 30 s. */
import assert from 'node:assert/strict';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, expect, test } from 'vitest';
import { harbour, heartbeats, run, runToEnd, temporaryFolder } from '../support/cluster.ts';
import { NatsServer } from '../support/nats_server.ts';
import { NEVER_SILENT, until } from '../support/until.ts';

const folder = temporaryFolder();
const file = join(folder.path, 'password');
const children: ChildProcess[] = [];
let nats: NatsServer;

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL');
  await nats.close();
  folder.remove();
});

function replace(password: string): void {
  writeFileSync(`${file}.new`, `${password}\n`);
  renameSync(`${file}.new`, file);
}

const serverWith = (password: string, port?: number): Promise<NatsServer> =>
  NatsServer.start(`authorization { user: ada, password: "${password}" }`, port);
const asAda = (): string[] => ['--bus', nats.url, '--bus-user', 'ada', '--bus-password-file', file];

/** Starts a process; resolves with its first line. */
async function start(role: string, ...args: string[]): Promise<string> {
  const child = run([role, '--name', role, ...asAda(), '--log-level', 'error', ...args]);
  children.push(child);
  assert(child.stdout);
  const [line] = (await once(createInterface({ input: child.stdout }), 'line')) as [string];
  return line;
}

test('a password in a file lets processes in; another one in its place counts when the server asks for it', async () => {
  nats = await serverWith('one');
  replace('one');
  const ready = await start('router', '--model', harbour, '--bind', '127.0.0.1:0', ...NEVER_SILENT);
  const url = /ready: (http:\S+),/.exec(ready)?.[1] ?? '';
  await start('store', '--data-dir', folder.path);
  await heartbeats(url);
  await nats.close();
  nats = await serverWith('two', nats.port);
  await until('a process with the old password is refused', () => nats.said.includes('authentication error'));
  replace('two');
  await heartbeats(url);
});

test('a password that is wrong, or a file that cannot be one, ends the start with what to do', async () => {
  const store = (...args: string[]): ReturnType<typeof runToEnd> =>
    runToEnd(['store', '--data-dir', folder.path, '--name', 'other', ...args]);
  replace('wrong');
  const refused = await store(...asAda());
  expect([refused.code, refused.errors]).toEqual([1, expect.stringMatching(/refuses this process.*--bus-user/)]);
  replace('two\nthree');
  const lines = await store(...asAda());
  expect([lines.code, lines.errors]).toEqual([2, expect.stringMatching(/--bus-password-file .* has several lines/)]);
  const both = await store(...asAda(), '--bus-password', 'two');
  expect([both.code, both.errors]).toEqual([2, expect.stringMatching(/set either --bus-password-file or/)]);
  const nobody = await store('--bus', nats.url, '--bus-password-file', file);
  expect([nobody.code, nobody.errors]).toEqual([2, expect.stringMatching(/--bus-password-file needs --bus-user/)]);
});
