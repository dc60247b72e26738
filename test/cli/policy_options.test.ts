/** The command line of `penstock policy`. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { policyOptions, readPolicyLine } from '../../services/cli/policy_options.ts';

const read = (...args: string[]): ReturnType<typeof readPolicyLine> =>
  readPolicyLine(args, { policy: policyOptions }, { PENSTOCK_CLUSTER_TOKEN: 'secret' });

test('a name may come before the options, or be left out', () => {
  const { name, config, isJson } = read('mooncake', '--router', '10.0.0.1:8001', '--json');
  assert.deepEqual([name, config.router, config.cluster_token, isJson], ['mooncake', '10.0.0.1:8001', 'secret', true]);
  const shown = read('--router=10.0.0.1:8001');
  assert.deepEqual([shown.name, shown.config.router, shown.isJson], ['', '10.0.0.1:8001', false]);
  assert.equal(read().config.router, '127.0.0.1:8001');
});

test('two names and wrong addresses are refused', () => {
  assert.throws(() => read('mooncake', 'dynamo'), /takes one name, not also dynamo/);
  assert.throws(() => read('--router', 'here'), /--router: "here" is not allowed: HOST:PORT/);
});
