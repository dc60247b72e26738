/**
 * A decode instance that emits tokens on a clock: its cost is that of the calls alone. Started by the benchmark with the address of
 * the hub or the NATS server and the model's folder; sends `ready` to its parent once it has joined, and the number of its open sequences when the parent asks.
 */
import { systemClock } from '../../../shared/base/clock.ts';
import { DecodeServer, type DecodeOutput } from '../../../shared/net/decode/served_decodes.ts';
import type { DecodeStart } from '../../../shared/protocol/messages.ts';
import { emptyReport } from '../../support/empty_report.ts';
import { joinWithDecode } from '../fake_instance.ts';
import { obeyParent, StepClock, type ClockedSequence } from './step_clock.ts';
import { tokenOf } from './stream_text.ts';

const clock = new StepClock();

/** Returns the sequence of a call. A call after a failover begins where the output so far ends: its list has those tokens. */
function sequenceOf({ tokens, request }: DecodeStart, output: DecodeOutput): ClockedSequence {
  const { promptLength = 0, maxLength = 0, sampling } = request ?? {};
  const seed = sampling?.seedLow ?? 0;
  const first = tokens.length / 4 - promptLength;
  const report = { ...emptyReport, cachedTokens: promptLength - 1, computedTokens: 1 };
  return {
    seed,
    next: first,
    limit: maxLength - promptLength,
    emit: (index, isLast) => {
      const position = promptLength + index;
      const token = tokenOf(seed, index).id;
      const sampled = { token, logprob: [], topTokens: [], topLogprobs: [], position };
      output.token(sampled, isLast ? 'length' : undefined, index === first ? report : undefined);
    },
  };
}

const decode = new DecodeServer(systemClock, (start, { signal }, output) => {
  const sequence = sequenceOf(start, output);
  signal.addEventListener('abort', () => {
    clock.remove(sequence);
  });
  clock.add(sequence);
  return { take: () => undefined };
}).handler;

const [hub = '', modelPath = ''] = process.argv.slice(2);
const load = () => ({ running: clock.numOpen });
obeyParent(clock);
await joinWithDecode({ hub, modelPath, name: `clocked-${process.pid}`, decode, load });
