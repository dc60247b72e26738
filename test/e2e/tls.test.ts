/** A cluster whose processes speak to one another over TLS only, certificates of both sides checked. Budget: 20 s. */
import assert from 'node:assert/strict';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { Authority } from '../support/certificates.ts';
import { Cluster, until } from '../support/cluster.ts';

const TOKEN = 'tls-token';
const prompt = Array.from({ length: 700 }, (_, i) => 3 + ((i * 7) % 900));

let authority: Authority;
let cluster: Cluster;
beforeAll(async () => {
  authority = new Authority();
  authority.issue('own');
  const files = ['--tls-cert', authority.file('own.pem'), '--tls-key', authority.file('own.key')];
  cluster = await Cluster.up(
    ...[...files, '--tls-ca', authority.file('ca.pem'), '--cluster-token', TOKEN],
    ...['--local-prefill-tokens', '64', '--transport', 'bulk'],
  );
});
afterAll(async () => {
  await cluster.close();
  authority.remove();
});

test('a long prompt is prefilled on one, decoded on another: blocks come over encrypted sockets, tokens are the same', async () => {
  const { choices } = await cluster.completion({ prompt, max_tokens: 12 });
  const plain = await Cluster.up('--prefill', '0', '--decode', '1', '--store', '0');
  const want = await plain.completion({ prompt, max_tokens: 12 });
  await plain.close();
  assert.deepEqual(choices[0]?.token_ids, want.choices[0]?.token_ids);
  const [view] = await cluster.requests(1);
  const bytes = await until('its bytes are told', async () => {
    const { fetched_bytes: told } = await cluster.node(view?.attempts.at(-1)?.decode ?? '');
    return told && told.socket + told.memory + told.call > 0 ? told : undefined;
  });
  assert(bytes.memory === 0 && bytes.call === 0, JSON.stringify(bytes));
});

test('nobody without a certificate gets in, token or not', async () => {
  const [node] = await cluster.pool();
  assert(node);
  const network = new GrpcNetwork(TOKEN, systemClock);
  const asked = { signal: new AbortController().signal, timeoutMs: 3_000 };
  await assert.rejects(askOnce(network, node.address, 'drain', {}, asked));
  network.close();
  const again = (await cluster.pool()).find(({ name }) => name === node.name);
  assert.equal(again?.epoch, node.epoch, 'it was not drained');
  await cluster.completion({ prompt: prompt.slice(0, 100), max_tokens: 2 });
});
