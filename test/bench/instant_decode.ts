/**
 * A decode instance that answers at once: what is left of a request's time is the router's and the wire's. Started by router.ts with
 * the hub and the model's folder; says `ready` to its parent.
 */
import { chainOf } from '../../shared/kv/block_key.ts';
import { formatDigest } from '../../shared/kv/format.ts';
import type { Handler } from '../../shared/net/network.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';
import { FORMAT, joinWithDecode, UNMEASURED_REPORT } from './fake_instance.ts';

/** Prompts whose blocks it has told of. */
const notified = new Set<string>();

const decode: Handler<'decode'> = async function* (requests) {
  for await (const { start } of requests) {
    if (!start) return;
    const { tokens } = start;
    const promptLength = start.request?.promptLength ?? 0;
    // Each prompt is announced once, because its blocks are known from then on.
    const last = start.lastDigest.toString('hex');
    if (!notified.has(last)) {
      notified.add(last);
      for (const hash of chainOf(formatDigest(FORMAT), FORMAT.blockSize, unpackTokens(tokens)))
        announcer.stored('device', hash);
    }
    const count = tokens.length / 4;
    const sampled = { token: 7, logprob: [], topTokens: [], topLogprobs: [], position: count };
    const report = { ...UNMEASURED_REPORT, cachedTokens: promptLength - 1, computedTokens: 1 };
    yield { sampled, report, finishReason: 'length', body: 'sampled' };
    return;
  }
};

const [hub = '', modelPath = ''] = process.argv.slice(2);
const announcer = await joinWithDecode({ hub, modelPath, name: `instant-${process.pid}`, decode });
