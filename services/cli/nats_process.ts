/**
 * Process that runs a nats-server for `penstock up`, on 127.0.0.1 and for clients with its token only. nats-server would outlive an `up` that is
 * killed; this process ends it when the channel to its parent closes, whoever has closed it, and ends when nats-server does.
 *
 *   node nats_process.js PROGRAM PORT      PENSTOCK_BUS_TOKEN: the token; PORT -1: one that the system picks
 */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

/** Milliseconds that nats-server has to end by itself. */
const END_MS = 2_000;

const [program = '', port = ''] = process.argv.slice(2);
const token = process.env['PENSTOCK_BUS_TOKEN'] ?? '';
// The list of processes shows arguments to everybody, so the token is in a file of this user alone until the server has read it.
const folder = mkdtempSync(join(tmpdir(), 'penstock-nats-'));
const removeFolder = (): void => {
  rmSync(folder, { recursive: true, force: true });
};
process.once('exit', removeFolder);
const file = join(folder, 'nats.conf');
const config = ['listen: "127.0.0.1:', port, '"\nlogtime: false\nauthorization { token: "', token, '" }\n'].join('');
writeFileSync(file, config, { mode: 0o600 });

const server = spawn(program, ['-c', file], { stdio: ['ignore', 'ignore', 'pipe'] });
let isEnding = false;
const end = (): void => {
  if (isEnding) return;
  isEnding = true;
  server.kill('SIGTERM');
  setTimeout(() => server.kill('SIGKILL'), END_MS).unref();
};
// Whatever ends this process: nothing else would end the server.
process.once('exit', () => server.kill('SIGKILL'));
process.on('SIGTERM', end);
process.on('SIGINT', end);
process.on('SIGHUP', end);
process.on('disconnect', end);
if (!process.connected) end();
// Nobody reads the log of a cluster that was killed.
process.stderr.on('error', () => undefined);
server.once('error', ({ message }) => {
  process.stderr.write(`cannot start ${program}: ${message}\n`);
  process.exit(1);
});
server.once('exit', (code, signal) => {
  if (!isEnding) process.stderr.write(`ended with ${signal ?? `code ${code}`}\n`);
  process.exit(isEnding ? 0 : 1);
});

let address = '';
createInterface({ input: server.stderr }).on('line', (line) => {
  address = /Listening for client connections on (\S+)/.exec(line)?.[1] ?? address;
  if (/Server is ready/.test(line)) {
    removeFolder();
    // Without a parent its end is under way.
    process.send?.({ kind: 'ready', address: `nats://${address}`, pid: server.pid }, () => undefined);
  }
  if (!/\[(INF|DBG|TRC)\]/.test(line)) process.stderr.write(`${line}\n`);
});
