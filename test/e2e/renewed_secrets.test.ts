/**
 * A cluster that runs while each of its secrets is renewed: certificates, the authority that signs them, the cluster token. Nothing that runs is
 * cut, and who comes later is let in by what is new, and by nothing old. Budget: 60 s.
 */
import assert from 'node:assert/strict';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { messageOf } from '../../shared/base/failure.ts';
import { newBusEpoch } from '../../shared/base/identity.ts';
import { silentLog } from '../../shared/base/log.ts';
import { ClusterBus } from '../../shared/bus/cluster_bus.ts';
import { HubClient } from '../../shared/bus/hub_client.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';
import { subjects } from '../../shared/protocol/membership.ts';
import { Authority, shownTo } from '../support/certificates.ts';
import { Cluster, temporaryFolder } from '../support/cluster.ts';
import { patientCall, until } from '../support/until.ts';

const [FIRST, SECOND] = ['first-token-of-the-cluster', 'second-token-of-the-cluster'];
/** No prefix of another one, so that its blocks must be fetched. */
const promptOf = (n: number): number[] => Array.from({ length: 400 }, (_, i) => 3 + ((i * 7 + n * 31) % 900));

let authority: Authority;
let successor: Authority;
let cluster: Cluster;
/** Certificates of this process under either authority; each trusts both. */
let client: { readonly old: TlsTexts; readonly new: TlsTexts };
const folder = temporaryFolder();
const at = (name: string): string => join(folder.path, name);

/** Puts a file in the place of another one at once. */
function replace(name: string, text: string): void {
  writeFileSync(at(`${name}.new`), text);
  renameSync(at(`${name}.new`), at(name));
}

beforeAll(async () => {
  [authority, successor] = [new Authority(), new Authority()];
  const own = authority.issue('own');
  replace('tls.crt', own.cert);
  replace('tls.key', own.key);
  replace('ca.crt', own.ca);
  replace('tokens', FIRST);
  const both = own.ca + readFileSync(successor.file('ca.pem'), 'utf8');
  client = { old: { ...authority.issue('old'), ca: both }, new: { ...successor.issue('new'), ca: both } };
  const files = ['--tls-cert', at('tls.crt'), '--tls-key', at('tls.key'), '--tls-ca', at('ca.crt')];
  cluster = await Cluster.up(
    ...[...files, '--cluster-token-file', at('tokens'), '--transport', 'bulk', '--log-level', 'silent'],
    ...['--policy', 'longest_prefix', '--local-prefill-tokens', '64', '--decode', '2'],
  );
});
afterAll(async () => {
  await cluster.close();
  authority.remove();
  successor.remove();
  folder.remove();
});

/** Addresses of all processes. */
async function addresses(): Promise<readonly string[]> {
  return [cluster.hub, ...(await cluster.pool()).map(({ address }) => address)];
}

function shownAt(address: string, tls: TlsTexts): Promise<string | undefined> {
  const [host = '', port] = address.split(':');
  return shownTo(tls, host, Number(port));
}

/** Resolves when all processes show this certificate to a client, or let it in no more. */
async function allShow(subject: string | undefined, tls: TlsTexts): Promise<void> {
  for (const address of await addresses())
    await until(`${address} shows ${subject}`, async () => (await shownAt(address, tls)) === subject);
}

async function allTake(token: string, isTaken: boolean): Promise<void> {
  const network = new GrpcNetwork(token, systemClock, client.new);
  for (const address of await addresses())
    await until(`${address} ${isTaken ? 'takes' : 'refuses'} a token`, async () => {
      const isRefused = await askOnce(network, address, 'check', { service: '' }, patientCall).then(
        () => false,
        (error: unknown) => /cluster token/.test(messageOf(error)),
      );
      return isRefused !== isTaken;
    });
  network.close();
}

/** An answer whose prompt is computed by the prefill instance; its blocks come over a data channel to the decode instance. */
async function fetches(n: number): Promise<void> {
  const bytes = async (): Promise<number> =>
    (await cluster.pool()).reduce((sum, node) => sum + (node.fetched_bytes?.socket ?? 0), 0);
  const before = await bytes();
  await cluster.completion({ prompt: promptOf(n), max_tokens: 4 });
  await until('blocks came over a data channel', async () => (await bytes()) > before);
}

/** A connection to the hub that is made before anything is renewed, and hears who sends under the second token. */
function listenerOnHub(): { readonly lost: string[]; readonly senders: Set<string>; readonly close: () => void } {
  const lost: string[] = [];
  const senders = new Set<string>();
  const network = new GrpcNetwork(FIRST, systemClock, client.old);
  const told = {
    onConnected: () => undefined,
    onDisconnected: (why: string) => lost.push(why),
    onRefused: assert.fail,
  };
  const hub = new HubClient({ address: cluster.hub, network, clock: systemClock, log: silentLog, ...told });
  const sealing = { cluster: 'default', token: SECOND, epoch: newBusEpoch() };
  const bus = new ClusterBus(hub, { ...sealing, clock: systemClock, log: silentLog });
  bus.subscribe(subjects.heartbeat, (payload) =>
    senders.add((JSON.parse(payload.toString()) as { name: string }).name),
  );
  bus.subscribe(subjects.router, () => senders.add('router'));
  return {
    lost,
    senders,
    close: () => {
      bus.close();
      network.close();
    },
  };
}

/** Answers, one after the other, until `end`, which returns how many there were: each is whole. */
function answersMeanwhile(): { readonly end: () => Promise<number> } {
  let [isOver, count] = [false, 0];
  const answering = (async (): Promise<void> => {
    for (; !isOver; count++) {
      const { usage } = await cluster.completion({ prompt: [5, 6, 7 + (count % 50)], max_tokens: 200 });
      assert.equal(usage.completion_tokens, 200);
    }
  })();
  return {
    end: async () => {
      isOver = true;
      await answering;
      return count;
    },
  };
}

test('certificates, their authority and the cluster token are renewed under a running cluster', async () => {
  const epochs = async (): Promise<readonly string[]> => (await cluster.pool()).map(({ epoch }) => epoch);
  const begun = await epochs();
  await fetches(1);
  const answers = answersMeanwhile();
  const heard = listenerOnHub();
  await allShow('CN=own', client.old);
  assert.equal(await shownAt(cluster.hub, client.new), undefined, 'the other authority counts for nothing yet');
  const next = authority.issue('next');
  replace('tls.key', next.key);
  replace('tls.crt', next.cert);
  await allShow('CN=next', client.old);
  // Another authority next to the first; then certificates of it; then it alone.
  replace('ca.crt', client.old.ca);
  await allShow('CN=next', client.new);
  const last = successor.issue('last');
  replace('tls.crt', last.cert);
  replace('tls.key', last.key);
  await allShow('CN=last', client.new);
  replace('ca.crt', last.ca);
  await allShow(undefined, client.old);
  // Tokens: one more that is taken; then it is the one that is sent; then it alone.
  replace('tokens', `${FIRST}\n${SECOND}\n`);
  await allTake(SECOND, true);
  assert.deepEqual([...heard.senders], [], 'nobody sends the second token yet');
  replace('tokens', `${SECOND}\n${FIRST}\n`);
  const names = ['router', ...(await cluster.pool()).map(({ name }) => name)];
  await until('all send the second token', () => names.every((name) => heard.senders.has(name)));
  replace('tokens', `${SECOND}\n`);
  await allTake(FIRST, false);
  await allTake(SECOND, true);
  assert((await answers.end()) > 0, 'answers came all the while');
  assert.deepEqual(heard.lost, [], 'a connection of the first certificate and token goes on');
  heard.close();
  assert.deepEqual(await epochs(), begun, 'no process has started again');
  // Who starts now has what is new alone. The others ask it for blocks, call it and are called by it.
  await cluster.killAndAwait(['prefill-1']);
  await fetches(2);
  for (const name of ['decode-1', 'decode-2']) await cluster.killAndAwait([name]);
  await fetches(3);
  await fetches(4);
});
