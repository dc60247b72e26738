/** A cluster whose processes speak to one another over TLS only, certificates of both sides checked. Budget: 20 s. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { afterAll, beforeAll, test } from 'vitest';
import { systemClock } from '../../shared/base/clock.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { askOnce } from '../../shared/net/network.ts';
import { Authority } from '../support/certificates.ts';
import { Cluster, harbour, run, runToEnd } from '../support/cluster.ts';
import { patientCall, until } from '../support/until.ts';

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
    ...['--policy', 'longest_prefix', '--local-prefill-tokens', '64', '--transport', 'bulk'],
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
    const { fetched_bytes: notified } = await cluster.node(view?.attempts.at(-1)?.decode ?? '');
    return notified && notified.socket + notified.memory + notified.call > 0 ? notified : undefined;
  });
  assert(bytes.memory === 0 && bytes.call === 0, JSON.stringify(bytes));
});

test('nobody without a certificate gets in, token or not', async () => {
  const [node] = await cluster.pool();
  assert(node);
  const network = new GrpcNetwork(TOKEN, systemClock);
  const asked = patientCall;
  await assert.rejects(askOnce(network, node.address, 'drain', {}, asked));
  network.close();
  const again = (await cluster.pool()).find(({ name }) => name === node.name);
  assert.equal(again?.epoch, node.epoch, 'it was not drained');
  await cluster.completion({ prompt: prompt.slice(0, 100), max_tokens: 2 });
});

test('a process without TLS, or with a certificate of another authority, is told so before it loads anything', async () => {
  const { hub } = cluster;
  const asked = [
    '--join',
    hub,
    '--cluster-token',
    TOKEN,
    '--log-level',
    'silent',
    '--model',
    harbour,
    '--threads',
    '1',
  ];
  const plain = await runToEnd(['decode', ...asked]);
  assert.equal(plain.code, 1);
  assert.match(plain.errors, /speaks TLS, and this process does not: start it with --tls-cert, --tls-key and --tls-ca/);
  const other = new Authority();
  other.issue('theirs');
  const files = ['--tls-cert', other.file('theirs.pem'), '--tls-key', other.file('theirs.key')];
  const foreign = await runToEnd(['decode', ...asked, ...files, '--tls-ca', other.file('ca.pem')]);
  other.remove();
  assert.equal(foreign.code, 1);
  assert.match(
    foreign.errors,
    /the certificate of 127\.0\.0\.1:\d+, CN=own \(signed by CN=ca, valid from .* to .*\), is not signed by an authority in the --tls-ca of this process/,
  );
  // Neither has read its weights: what is loaded is shown.
  for (const { errors } of [plain, foreign]) assert.doesNotMatch(errors, /weights/);
});

test('a certificate that has expired, or that the other side does not know, is named with its subject and its time, at both ends and by doctor', async () => {
  const { hub } = cluster;
  const filesOf = (of: Authority, name: string, ca = 'ca.pem'): string[] => [
    ...['--tls-cert', of.file(`${name}.pem`), '--tls-key', of.file(`${name}.key`), '--tls-ca', authority.file(ca)],
  ];
  const asked = ['--join', hub, '--cluster-token', TOKEN, '--log-level', 'silent', '--disk-bytes', '0'];
  authority.issue('old', 'IP:127.0.0.1', -1);
  const expired = await runToEnd(['store', ...asked, ...filesOf(authority, 'old')]);
  assert.equal(expired.code, 1);
  assert.match(
    expired.errors,
    /the certificate of this process, CN=old \(signed by CN=ca, valid from .* to .*\), has expired, so \S+ refuses it/,
  );
  const other = new Authority();
  other.issue('theirs');
  const unknown = await runToEnd(['store', ...asked, ...filesOf(other, 'theirs')]);
  assert.match(unknown.errors, /refuses the certificate of this process, CN=theirs .*authority in the --tls-ca there/);
  const finding = await runToEnd(['doctor', '--router', hub, '--cluster-token', TOKEN, ...filesOf(authority, 'old')]);
  assert.match(finding.output + finding.errors, /CN=old .* has expired/);
  // A server whose certificate has expired is named by its clients, and refuses nobody.
  const network = new GrpcNetwork(TOKEN, systemClock, authority.issue('late', 'IP:127.0.0.1', -1));
  const listener = await network.listen('127.0.0.1:0', {});
  const refused: string[] = [];
  const guarded = new GrpcNetwork(TOKEN, systemClock, authority.issue('guard'), (from, why) =>
    refused.push(`${from} ${why}`),
  );
  const guard = await guarded.listen('127.0.0.1:0', {});
  await assert.rejects(
    askOnce(guarded, listener.address, 'check', { service: '' }, patientCall),
    /the certificate of 127\.0\.0\.1:\d+, CN=late .* has expired: renew it there/,
  );
  await assert.rejects(askOnce(network, guard.address, 'check', { service: '' }, patientCall), /CN=late .* refuses it/);
  assert.match(refused[0] ?? '', /^127\.0\.0\.1:\d+ its certificate has expired/);
  await Promise.all([listener.close(0), guard.close(0)]);
  network.close();
  guarded.close();
  other.remove();
});

test('a certificate that does not name the host of its process: it is told, and not counted', async () => {
  authority.issue('elsewhere', 'DNS:elsewhere.example,IP:10.9.8.7');
  const files = ['--tls-cert', authority.file('elsewhere.pem'), '--tls-key', authority.file('elsewhere.key')];
  const child = run([
    ...['store', '--join', cluster.hub, '--cluster-token', TOKEN, '--log-level', 'warn', '--name', 'elsewhere'],
    ...['--data-dir', authority.folder, ...files, '--tls-ca', authority.file('ca.pem')],
  ]);
  let errors = '';
  child.stderr?.on('data', (chunk: Buffer) => (errors += chunk.toString()));
  // It is a member before it is called for the first time.
  const cause = await until('it cannot be called', async () => {
    const node = (await cluster.pool()).find(({ name }) => name === 'elsewhere');
    return (node as { unreachable?: string | null } | undefined)?.unreachable ?? undefined;
  });
  assert.match(cause, /does not match certificate's altnames/);
  await until('its log says so', () => Promise.resolve(errors.includes('its certificate names that host')));
  const { instances } = (await (await fetch(`${cluster.url}/health`)).json()) as { instances: { store: number } };
  assert.equal(instances.store, 1);
  const exit = once(child, 'exit');
  child.kill('SIGTERM');
  await exit;
});
