/** A process says at its start which prompts can be read on the way. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { clearTextWarning } from '../../services/cli/open_ports.ts';
import type { Role } from '../../shared/protocol/membership.ts';

type Ports = Partial<Record<'bind' | 'hub_bind' | 'bus' | 'tls_cert', string>>;

const said = (role: Role, ports: Ports): string | undefined =>
  clearTextWarning(role, { bind: '', bus: '', tls_cert: '', ...ports } as never);

test('a process that others reach over a network without TLS says so, with what to do', () => {
  const processes = /cross the network in clear between the processes: .*--tls-cert.*--tls-ca/;
  for (const role of ['prefill', 'decode', 'store'] as const)
    assert.match(said(role, { bind: '10.0.0.3:9000' }) ?? '', processes);
  assert.match(said('router', { hub_bind: '0.0.0.0:8001' }) ?? '', processes);
  assert.match(said('decode', { bus: 'nats://127.0.0.1:4222,nats://10.0.0.8:4222' }) ?? '', processes);
  assert.match(said('router', { bind: '0.0.0.0:8000' }) ?? '', /in clear between clients and 0\.0\.0\.0:8000: .*HTTPS/);
  assert.doesNotMatch(
    said('router', { bind: '0.0.0.0:8000', hub_bind: '10.0.0.1:8001', tls_cert: 'a' }) ?? '',
    processes,
  );
});

test('on one machine, and with TLS, there is nothing to say', () => {
  for (const role of ['router', 'decode'] as const)
    assert.equal(said(role, { bind: '127.0.0.1:0', hub_bind: '[::1]:0', bus: 'nats://localhost:4222' }), undefined);
  assert.equal(said('router', {}), undefined);
  assert.equal(said('decode', { bind: '10.0.0.3:9000', bus: 'nats://10.0.0.8:4222', tls_cert: 'own.pem' }), undefined);
});
