/** The Forget call of a router, with members that the test plays. Budget: 1 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import { silentLog } from '../../../shared/base/log.ts';
import { answeringOnce, askOnce, type Network } from '../../../shared/net/network.ts';
import type { Member } from '../../../shared/protocol/membership.ts';
import type { ForgetOutcome } from '../../../shared/protocol/messages.ts';
import { serveForget, type ForgetTenantOptions } from '../../../services/router/cluster/forget_tenant.ts';
import { playedNetwork } from '../../support/played_network.ts';
import { patientCall } from '../../support/until.ts';

const members = ['store', 'prefill', 'decode', 'store'].map((role, i) => ({
  name: `${role}-${i}`,
  role,
  address: `a:${i}`,
}));
const view = { all: () => members.map((member) => ({ member: { ...member, pid: 1, epoch: 'e' } as Member })) };

/** Calls a router. `answer` plays the members, which are called in the order of `called`. */
async function call(
  tenant: string,
  answer: (address: string) => Partial<ForgetOutcome>,
  more: Partial<ForgetTenantOptions> = {},
): Promise<{ outcomes: readonly ForgetOutcome[]; called: string[] }> {
  const called: string[] = [];
  const peer = (address: string): Network =>
    playedNetwork({
      forget: answeringOnce<'forget'>((request) => {
        assert.deepEqual(request, { tenant });
        called.push(address);
        const nothing = { member: '', role: '', blocks: 0, bytes: 0, inUse: 0, isFinal: true, error: '' };
        return { outcomes: [{ ...nothing, ...answer(address) }] };
      }),
    });
  const network: Network = { ...peer(''), open: (address, ...rest) => peer(address).open(address, ...rest) };
  const router = playedNetwork({ forget: serveForget({ view, network, log: silentLog, ...more }) });
  const { outcomes } = await askOnce(router, 'r:1', 'forget', { tenant }, patientCall);
  return { outcomes, called };
}

test('every engine is called, then every store, and each outcome has its name', async () => {
  const { outcomes, called } = await call('acme', () => ({ blocks: 2, bytes: 100 }));
  expect(called).toEqual(['a:1', 'a:2', 'a:0', 'a:3']);
  expect(outcomes.map(({ member, role, blocks }) => [member, role, blocks])).toEqual([
    ['prefill-1', 'prefill', 2],
    ['decode-2', 'decode', 2],
    ['store-0', 'store', 2],
    ['store-3', 'store', 2],
  ]);
});

test('a member that fails is named with its reason, and the others are called all the same', async () => {
  const { outcomes, called } = await call('acme', (address) => {
    if (address === 'a:0') throw new Failure('overloaded', 'its disk cannot be used now');
    return { blocks: 1 };
  });
  expect(called).toHaveLength(4);
  expect(outcomes.filter(({ error }) => error !== '')).toEqual([
    expect.objectContaining({ member: 'store-0', blocks: 0, isFinal: false, error: 'its disk cannot be used now' }),
  ]);
});

test('the empty name, and a tenant that shares its blocks, are refused before a member is called', async () => {
  const refuse = (): never => assert.fail('a member is called');
  await expect(call('', refuse)).rejects.toThrow(/name the tenant/);
  const sharesBlocks = (tenant: string): boolean => tenant === 'public';
  await expect(call('public', refuse, { sharesBlocks })).rejects.toThrow(/"public" shares its blocks with others/);
  expect((await call('acme', () => ({}), { sharesBlocks })).called).toHaveLength(4);
});
