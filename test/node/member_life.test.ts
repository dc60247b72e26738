/** The life of a member, over real gRPC: what it says before it can serve. Budget: 5 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import type { Digest } from '../../shared/kv/block_key.ts';
import { systemClock } from '../../shared/base/clock.ts';
import { Current } from '../../shared/base/current.ts';
import { Failure } from '../../shared/base/failure.ts';
import { silentLog } from '../../shared/base/log.ts';
import { liveAsMember } from '../../shared/node/member_life.ts';
import type { MemberConfig } from '../../shared/node/options.ts';
import type { RoleContext } from '../../shared/node/role.ts';
import { GrpcNetwork } from '../../shared/net/grpc/grpc_network.ts';
import { ask, askOnce, type CallName, type Listener } from '../../shared/net/network.ts';
import { offerOf } from '../support/borrowing.ts';
import { patientCall } from '../support/until.ts';

test('a process that is still starting is as good as lost: its callers go elsewhere', async () => {
  const network = new GrpcNetwork('', systemClock);
  let bound: (listener: Listener) => void = () => undefined;
  const listening = new Promise<Listener>((resolve) => {
    bound = resolve;
  });
  const watched = Object.assign(Object.create(network) as GrpcNetwork, {
    listen: async (...args: Parameters<GrpcNetwork['listen']>) => {
      const listener = await network.listen(...args);
      bound(listener);
      return listener;
    },
  });
  const context = {
    role: 'decode',
    config: { bind: '', advertise: '' },
    clusterTokens: new Current(''),
    busEpoch: Buffer.alloc(16),
    network: watched,
    clock: systemClock,
    log: silentLog,
    identity: { pid: 1, epoch: 'e' },
    fail: assert.fail,
    drain: () => undefined,
  } as unknown as RoleContext<MemberConfig>;
  void liveAsMember(context, 100, () => new Promise(() => undefined));
  const listener = await listening;
  const options = patientCall;
  const isLost = (error: unknown): boolean => error instanceof Failure && error.code === 'instance_lost';
  for (const name of ['decode', 'fetch', 'snapshot'] as const satisfies CallName[]) {
    const request = { context: null, format: Buffer.alloc(16), hashes: Buffer.alloc(0), waitMs: 0 };
    await assert.rejects(ask(network, listener.address, name, request, options).next(), isLost, name);
  }
  const offer = offerOf('00'.repeat(16) as Digest, [], { recordBytes: 1, source: 's' });
  await assert.rejects(askOnce(network, listener.address, 'offer', offer, options), isLost);
  network.close();
  await listener.close(100);
});
