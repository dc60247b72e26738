/** The hardware of a cluster, as a replay takes it. Budget: 1 s. */
import assert from 'node:assert/strict';
import { test } from 'vitest';
import { Failure } from '../../../shared/base/failure.ts';
import type { InstanceWork } from '../../../shared/protocol/instance_work.ts';
import { hardwareView } from '../../../services/router/cluster/hardware_view.ts';
import { Instance } from '../../../shared/placement/instance.ts';
import type { ModelView } from '../../../services/router/cluster/model_view.ts';

const workOf = (rowMs: number): InstanceWork => ({
  step: { constantMs: 18, rowMs, pairMs: 0.000_002, contextMs: 0.000_03, sequenceMs: 0.5 },
  chunkTokens: 256,
  maxNumSeqs: 8,
  pacedStepMs: 0,
  promptsMs: 0,
  ends: [],
  prompts: { tokens: 0, pairs: 0, sequences: 0 },
  generating: { sequences: 0, contextTokens: 0 },
  coming: { sequences: 0, contextTokens: 0 },
  numBlocks: 1_000,
  freeBlocks: 64,
  waitingBlocks: 0,
  blockBytes: 64_000,
});

function engine(name: string, work: InstanceWork | undefined): Instance {
  const instance = new Instance(
    { member: { name, role: 'decode', address: `${name}:1`, pid: 1, epoch: 'e' }, protocolVersion: 1 },
    0,
  );
  const dram = { blocks: 0, bytes: 0, capacityBytes: 6_400_000, hits: 0, misses: 0, evictions: 0, dedupFactor: 1 };
  const load = { running: 0, waiting: 0, preemptions: 0, lastStepMs: 0, isDraining: false, tiers: { dram } };
  instance.receiveHeartbeat({ load: { ...load, ...(work ? { work } : {}) }, blocks: 0, seen: {} }, 'r', 0);
  return instance;
}

const viewOf = (engines: readonly Instance[]): ModelView =>
  ({
    name: 'm',
    model: { format: { blockSize: 32 } },
    of: (role: string) => (role === 'decode' ? engines : []),
  }) as unknown as ModelView;

test('the median of the engines that say how long their steps take is the hardware, in seconds and bytes', () => {
  const engines = [0.3, 0.1, 0.2].map((rowMs, i) => engine(`d${i}`, workOf(rowMs)));
  const measured = { bytesPerMs: 87_000, numLinks: 3 };
  const hardware = hardwareView(viewOf([...engines, engine('silent', undefined)]), measured);
  assert.deepEqual(hardware, {
    name: '3 engines of m, measured',
    step_seconds: {
      fixed: 0.018,
      weights: 0,
      per_row: 0.000_2,
      per_attended_pair: 0.000_002 / 1_000,
      per_context_token_of_a_decode_row: 0.000_03 / 1_000,
      per_sequence: 0.000_5,
    },
    kv_bytes_per_token: 2_000,
    link_bytes_per_second: 87e6,
    dram_to_device_bytes_per_second: 25e9,
    device_kv_tokens: 32_000,
    dram_kv_tokens: 3_200,
    max_rows: 256,
    block_tokens_of_the_trace: 32,
    assumed: ['dram_to_device_bytes_per_second'],
  });
});

test('while no engine says how long its steps take, the answer is a failure that says what to do', () => {
  assert.throws(
    () => hardwareView(viewOf([engine('silent', undefined)]), { bytesPerMs: 1, numLinks: 0 }),
    (error: unknown) => error instanceof Failure && error.code === 'overloaded' && /ask again/.test(error.message),
  );
});
