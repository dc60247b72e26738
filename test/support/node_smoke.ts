/**
 * Checks in one process of things that differ between versions of Node: `node --expose-gc dist/test/support/node_smoke.js` loads every module of the build
 * that is not an entry, opens a model and closes it, calls a peer by its IP address over TLS, and waits for a time that has passed. Anything that Node warns of, or refuses,
 * is on standard error.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join, relative, sep } from 'node:path';
import { pathToFileURL } from 'node:url';
import { systemClock } from '../../shared/base/clock.ts';
import { Failure } from '../../shared/base/failure.ts';
import { openModel } from '../../shared/model/open_model.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { Authority } from './certificates.ts';
import { goldenFolder } from './golden.ts';
import { projectPath } from './project.ts';
import { patientCall, turn } from './until.ts';

const dist = projectPath('dist');

/** Loads every module that is one of the product's and starts nothing. Returns how many there are. */
async function loadModules(): Promise<number> {
  const entries = JSON.parse(readFileSync(join(dist, 'entries.json'), 'utf8')) as string[];
  const isEntry = new Set(entries.map((path) => path.replace(/ts$/, 'js')));
  const modules = ['kernels', 'shared', 'services']
    .flatMap((folder) =>
      readdirSync(join(dist, folder), { recursive: true, encoding: 'utf8' }).map((name) => join(folder, name)),
    )
    .map((path) => relative('.', path).replaceAll(sep, '/'))
    // The dashboard is for browsers.
    .filter((path) => path.endsWith('.js') && !isEntry.has(path) && !path.startsWith('services/dashboard/'));
  for (const path of modules) await import(pathToFileURL(join(dist, path)).href);
  return modules.length;
}

/** Opens models and closes them. A file that stays open is an error when the garbage collector finds it. */
async function openModels(): Promise<void> {
  for (const name of ['qwen2', 'gguf-q8_0']) {
    const weights = await (await openModel(goldenFolder(name))).openWeights();
    assert(weights.shapes.size > 0);
    await weights.close();
  }
  assert(globalThis.gc, 'start with --expose-gc');
  for (let i = 0; i < 3; i++) {
    globalThis.gc();
    await turn();
  }
}

async function callOverTls(): Promise<void> {
  const authority = new Authority();
  try {
    const tls = authority.issue('own');
    const network = new GrpcNetwork('token', systemClock, tls);
    const listener = await network.listen('127.0.0.1:0', {}, 'epoch');
    listener.setServing(true);
    const options = patientCall;
    const status = await askOnce(network, listener.address, 'check', { service: 'epoch' }, options);
    assert.equal(status.status, 'SERVING');
    const other = new GrpcNetwork('token', systemClock, authority.issue('other', 'IP:127.0.0.9'));
    const wrong = await other.listen('127.0.0.1:0', {}, 'epoch');
    await assert.rejects(
      askOnce(network, wrong.address, 'check', { service: 'epoch' }, options),
      (error) => error instanceof Failure && /altnames/.test(error.message),
    );
    for (const one of [listener, wrong]) await one.close(0);
    for (const one of [network, other]) one.close();
  } finally {
    authority.remove();
  }
}

const numModules = await loadModules();
await openModels();
await callOverTls();
// Node warns of negative times.
// eslint-disable-next-line time/speed -- the clock itself
await systemClock.sleep(-1);
console.log(JSON.stringify({ numModules }));
