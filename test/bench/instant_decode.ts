/**
 * A decode instance that answers at once: what is left of a request's time is the router's and the wire's. Started by router.ts with
 * the hub and the model's folder; says `ready` to its parent.
 */
import { systemClock } from '../../shared/base/clock.ts';
import { chainOf } from '../../shared/kv/block_key.ts';
import { formatDigest } from '../../shared/kv/format.ts';
import { DecodeServer } from '../../shared/net/decode/served_decodes.ts';
import { unpackTokens } from '../../shared/protocol/packing.ts';
import { emptyReport } from '../support/empty_report.ts';
import { FORMAT, joinWithDecode } from './fake_instance.ts';

/** Prompts whose blocks it has told of. */
const notified = new Set<string>();

const decode = new DecodeServer(systemClock, ({ tokens, lastDigest, request }, _call, output) => {
  const promptLength = request?.promptLength ?? 0;
  // Each prompt is announced once, because its blocks are known from then on.
  const last = lastDigest.toString('hex');
  if (!notified.has(last)) {
    notified.add(last);
    for (const hash of chainOf(formatDigest(FORMAT), FORMAT.blockSize, unpackTokens(tokens)))
      announcer.stored('device', hash);
  }
  const sampled = { token: 7, logprob: [], topTokens: [], topLogprobs: [], position: tokens.length / 4 };
  output.token(sampled, 'length', { ...emptyReport, cachedTokens: promptLength - 1, computedTokens: 1 });
  return { take: () => undefined };
}).handler;

const [hub = '', modelPath = ''] = process.argv.slice(2);
const announcer = await joinWithDecode({ hub, modelPath, name: `instant-${process.pid}`, decode });
