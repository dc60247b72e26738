/** Reads records of this process's own outbox as a fetch would read another holder's; they go through the same checks (K2). */
import { messageOf } from '../base/failure.ts';
import type { BlockHash, Digest } from '../kv/block_key.ts';
import type { FetchStream } from '../net/fetch/fetch.ts';
import type { TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { Outbox } from './outbox.ts';

/** Records to read, and the request that they are read for. */
interface OutboxRun {
  readonly hashes: readonly BlockHash[];
  readonly format: Digest;
  readonly requestId: string;
  /** Aborts when the reader leaves. */
  readonly signal: AbortSignal;
}

/** Returns a stream of copies of the outbox's records, up to the first that it lacks. */
export function outboxStream(
  outbox: Pick<Outbox, 'borrow'>,
  transferThread: Pick<TransferThread, 'call'>,
  { hashes, format, requestId, signal }: OutboxRun,
): FetchStream {
  return {
    async *records({ acquire, bytes }) {
      for (const [index, hash] of hashes.entries()) {
        const borrowed = await outbox.borrow(hash, requestId, 0, signal);
        if (!borrowed) return;
        let slot: number;
        try {
          slot = await acquire();
          bytes(slot).set(borrowed.record);
        } finally {
          borrowed.release();
        }
        const want = { format, digest: hash.digest };
        const fault = await transferThread
          .call('verify', { slot, bytes: borrowed.record.length, want })
          .catch(messageOf);
        yield [{ index, slot, frame: undefined, isLast: true, fault, isFromDisk: false }];
      }
    },
    cancel: () => undefined,
    links: [],
  };
}
