/**
 * A decode instance that emits tokens on a clock: its cost is that of the calls alone. Started by the benchmark with the hub and the
 * model's folder; sends `ready` to its parent once it has joined, and the number of its open sequences when the parent asks.
 */
import { AsyncQueue } from '../../../shared/base/async_queue.ts';
import type { Handler } from '../../../shared/net/network.ts';
import type { DecodeReply, DecodeStart } from '../../../shared/protocol/messages.ts';
import { joinWithDecode, UNMEASURED_REPORT } from '../fake_instance.ts';
import { obeyParent, StepClock, type ClockedSequence } from './step_clock.ts';
import { tokenOf } from './stream_text.ts';

const clock = new StepClock();

/** Returns the sequence of a call. A call after a failover begins where the output so far ends: its list has those tokens. */
function sequenceOf({ tokens, request }: DecodeStart, replies: AsyncQueue<DecodeReply>): ClockedSequence {
  const { promptLength = 0, maxLength = 0, sampling } = request ?? {};
  const seed = sampling?.seedLow ?? 0;
  const first = tokens.length / 4 - promptLength;
  return {
    seed,
    next: first,
    limit: maxLength - promptLength,
    emit: (index, isLast) => {
      const position = promptLength + index;
      const token = tokenOf(seed, index).id;
      replies.push({
        sampled: { token, logprob: [], topTokens: [], topLogprobs: [], position },
        report: index === first ? { ...UNMEASURED_REPORT, cachedTokens: promptLength - 1, computedTokens: 1 } : null,
        finishReason: isLast ? 'length' : '',
      });
      if (isLast) replies.end();
    },
  };
}

const decode: Handler<'decode'> = async function* (requests, { signal }) {
  const first = await requests[Symbol.asyncIterator]().next();
  if (first.done || !first.value.start) return;
  const replies = new AsyncQueue<DecodeReply>();
  const sequence = sequenceOf(first.value.start, replies);
  signal.addEventListener('abort', () => {
    replies.fail(signal.reason);
  });
  clock.add(sequence);
  try {
    yield* replies;
  } finally {
    clock.remove(sequence);
  }
};

const [hub = '', modelPath = ''] = process.argv.slice(2);
const load = () => ({ running: clock.numOpen });
obeyParent(clock);
await joinWithDecode({ hub, modelPath, name: `clocked-${process.pid}`, decode, load });
