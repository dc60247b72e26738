/**
 * Pulls a run of records into host memory slots.
 *
 * The stream is opened at once and read no faster than slots come free, so a full window stops the sender. What arrives is
 * not trusted yet: the caller verifies each record (K2).
 */
import { Failure } from '../base/failure.ts';
import type { ChainLink, Digest } from '../kv/block_key.ts';
import { fetchBlocks } from '../protocol/calls.ts';
import type { FetchReply, RequestContext } from '../protocol/messages.ts';
import { packDigest, packLinks } from '../protocol/packing.ts';
import { toFailure, type Peers } from '../protocol/rpc.ts';

export interface FetchOptions {
  readonly context: RequestContext;
  readonly namespace: Digest;
  readonly links: readonly ChainLink[];
  /** How long the holder may wait for a block that is being computed. */
  readonly waitMs: number;
  readonly timeoutMs: number;
  readonly recordBytes: number;
  readonly signal: AbortSignal;
}

/** A slot to write one record into. */
export interface ArrivalSlot {
  readonly slot: number;
  readonly bytes: Uint8Array;
}

export interface FetchStream {
  /** Records in order, each in the slot that `takeSlot` gave; the last one may be short of the run. @throws Failure when the stream breaks. */
  records(
    takeSlot: () => Promise<ArrivalSlot>,
    giveBack: (slot: number) => void,
  ): AsyncGenerator<{ index: number; slot: number }>;
  cancel(): void;
}

export function openFetch(peers: Peers, address: string, options: FetchOptions): FetchStream {
  const { context, namespace, links, waitMs, timeoutMs, recordBytes, signal } = options;
  const call = fetchBlocks(
    peers,
    address,
    { context, namespace: packDigest(namespace), links: packLinks(links), waitMs },
    timeoutMs,
  );
  // Reading starts later; an error before that is kept by the stream and thrown to the reader.
  call.on('error', () => undefined);
  const cancel = (): void => {
    call.cancel();
  };
  signal.addEventListener('abort', cancel);
  if (signal.aborted) cancel();

  async function* records(
    takeSlot: () => Promise<ArrivalSlot>,
    giveBack: (slot: number) => void,
  ): AsyncGenerator<{ index: number; slot: number }> {
    let open: (ArrivalSlot & { next: number }) | undefined;
    let index = 0;
    try {
      for await (const reply of call as AsyncIterable<FetchReply>) {
        const isNext = reply.index === index && reply.totalBytes === recordBytes && reply.offset === (open?.next ?? 0);
        if (!isNext || reply.offset + reply.data.length > recordBytes || index >= links.length) {
          throw new Failure(
            'transfer_failed',
            `${address} sent slice ${reply.index}+${reply.offset} of ${reply.totalBytes} bytes, not the next one`,
          );
        }
        open ??= { ...(await takeSlot()), next: 0 };
        open.bytes.set(reply.data, reply.offset);
        open.next += reply.data.length;
        if (open.next < recordBytes) continue;
        const { slot } = open;
        open = undefined;
        yield { index: index++, slot };
      }
      if (open) throw new Failure('transfer_failed', `${address} ended in the middle of a record`);
    } catch (error) {
      throw toFailure(error, address);
    } finally {
      if (open) giveBack(open.slot);
      signal.removeEventListener('abort', cancel);
      call.cancel();
    }
  }
  return { records, cancel };
}
