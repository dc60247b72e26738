/** The command line of `penstock replay`. Budget: 1 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { readReplayLine, replayFlags, replayHelp } from '../../services/replay/replay_arguments.ts';
import type { ReplayOptions } from '../../services/replay/replay_options.ts';
import { ConfigError } from '../../shared/base/options.ts';

const policies = ['alpha', 'beta', 'gamma'] as const;
const read = (line: string): ReturnType<typeof readReplayLine> =>
  readReplayLine(line.split(' ').filter(Boolean), policies);

function optionsOf(line: string): ReplayOptions {
  const result = read(line);
  assert(result.kind === 'replay');
  return result.options;
}

test('a trace alone is replayed by the default policy for goodput, with the documented defaults', () => {
  assert.deepEqual(optionsOf('t.jsonl'), {
    trace: { kind: 'file', path: 't.jsonl' },
    cluster: { kind: 'split', numPrefill: 2, numDecode: 2 },
    policies: ['alpha'],
    targets: { ttftMs: 10_000, tbtMs: 100 },
    seeds: [1],
    engine: 'light',
    queueOrder: 'first_come',
    fairShares: true,
    weights: new Map(),
    strictRoles: false,
    cacheCurve: false,
    hardware: undefined,
    apiKey: undefined,
    ratePerSecond: undefined,
    maxRequests: undefined,
    traceBlockTokens: undefined,
    linkBytesPerSecond: undefined,
    slow: undefined,
    html: undefined,
    json: undefined,
  });
});

test('every flag arrives', () => {
  const line =
    'generate:zipf,rate=2 --aggregated 16 --hardware http://r:8000 --api-key k --policy beta,alpha --policy gamma --slo-ttft 2.5 --slo-tbt .05 ' +
    '--rate 7e1 --seeds 3 --requests 100 --engine full --queue-order feedback --fair-shares off --weights team=2,guests=.5 --strict-roles --link-bytes-per-second 1e9 --slow 0.5:3 ' +
    '--cache-curve --html a.html --json a.json --trace-block 16 --progress';
  const result = read(line);
  assert(result.kind === 'replay' && result.isProgressWanted);
  const { trace, ...options } = result.options;
  assert(trace.kind === 'generated' && trace.spec.kind === 'zipf' && trace.spec.values['rate'] === 2);
  assert.deepEqual(options, {
    cluster: { kind: 'aggregated', numInstances: 16 },
    hardware: 'http://r:8000',
    apiKey: 'k',
    policies: ['beta', 'alpha', 'gamma'],
    targets: { ttftMs: 2_500, tbtMs: 50 },

    ratePerSecond: 70,
    seeds: [1, 2, 3],
    maxRequests: 100,
    engine: 'full',
    queueOrder: 'feedback',
    fairShares: false,
    weights: new Map([
      ['team', 2],
      ['guests', 0.5],
    ]),
    strictRoles: true,
    linkBytesPerSecond: 1e9,
    slow: { share: 0.5, factor: 3 },
    cacheCurve: true,
    html: 'a.html',
    json: 'a.json',
    traceBlockTokens: 16,
  });
  assert.deepEqual(optionsOf('t --compare').policies, policies);
});

describe('refused', () => {
  test.each([
    ['', /name a trace/],
    ['a b', /takes one trace, not also b/],
    ['a --api-key k', /--api-key is for the router of --hardware URL: name one/],
    ['a --api-key k --hardware h.json', /--api-key is for the router of --hardware URL/],
    ['a --slo 3', /Unknown option '--slo'[\s\S]*penstock replay --help/],
    ['a --rate', /'--rate <value>' argument missing/],
    ['a --rate=', /--rate needs a value: R/],
    ['a --rate 0', /--rate: "0" is not allowed: a number from 0.0001 to 1000000 \(one run/],
    ['a --rate fast', /--rate: "fast" is not allowed/],
    ['a --rate 0x10', /--rate: "0x10" is not allowed/],
    ['a --fair-shares maybe', /--fair-shares: "maybe" is not allowed: on or off/],
    ['a --weights team', /--weights: "team" is not allowed: NAME=W for each tenant once/],
    ['a --weights team=0', /--weights: "team=0" is not allowed/],
    ['a --weights team=1,team=2', /--weights: "team=2" is not allowed/],
    ['a --queue-order best', /--queue-order: "best" is not allowed: first_come, shortest_first/],
    ['a --seeds 1.5', /--seeds: "1.5" is not allowed: a whole number from 1 to 100/],
    ['a --seeds 101', /--seeds: "101" is not allowed/],
    ['a --prefill 0', /--prefill: "0" is not allowed: a whole number from 1 to 1024/],
    ['a --prefill 2 --prefill 3', /Option '--prefill' is given 2 times/],
    ['a --aggregated 4 --prefill 2', /--aggregated is another cluster than --prefill and --decode/],
    ['a --aggregated 4 --decode 2', /--aggregated is another cluster/],
    ['a --compare --policy beta', /--compare runs all policies: leave out --policy, or --compare/],
    ['a --policy delta', /there is no policy "delta": use alpha, beta, gamma/],
    ['a --engine half', /--engine: "half" is not allowed: light or full/],
    ['a --slow 3', /--slow: "3" is not allowed: SHARE:FACTOR/],
    ['a --slow 1.5:3', /--slow: "1.5:3" is not allowed/],
    ['a --slow 0.5:0.5', /--slow: "0.5:0.5" is not allowed/],
    ['a --slo-ttft -1', /argument is ambiguous|--slo-ttft/],
    ['a --html x --json x', /--html and --json both name x/],
    ['a --out x', /--out means nothing without --generate/],
    ['a --compare=yes', /does not take an argument/],
    ['--generate zipf --rate 3', /--generate takes only --out, not also --rate/],
    ['a --generate zipf', /--generate takes only --out, not also a/],
    ['generate:zip', /there is no generated trace "zip"/],
  ])('%s', (line, message) => {
    assert.throws(
      () => read(line),
      (error) => error instanceof ConfigError && message.test(error.message),
    );
  });
});

test('the help names every flag, every policy and the hardware', () => {
  assert.deepEqual(read('a --rate x -h'), { kind: 'help' });
  const help = replayHelp(policies, 'one fast GPU');
  for (const word of [...replayFlags, ...policies, 'one fast GPU', 'multi-turn', '1,000,000 requests'])
    assert(help.includes(word), word);
});
