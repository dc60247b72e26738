/** Snapshots of holders, page by page. */
import type { Clock } from '../base/clock.ts';
import { Failure } from '../base/failure.ts';
import { linkSignals } from '../base/signal.ts';
import { Patience } from './fetch/patience.ts';
import { ask, type Network, type Reply } from './network.ts';

/** Milliseconds for which a holder may send no page. A snapshot may take any time: that depends on the number of blocks. */
const SILENCE_MS = 30_000;

/**
 * Yields the pages of the snapshot of the holder at `address`, however long all of them take. @throws Failure `deadline_exceeded` when the
 * next one does not come within SILENCE_MS, and what the call throws
 */
export async function* snapshotPages(
  { network, clock }: { readonly network: Network; readonly clock: Pick<Clock, 'sleep'> },
  address: string,
  signal: AbortSignal,
): AsyncGenerator<Reply<'snapshot'>> {
  const link = linkSignals(signal);
  let silence: Failure | undefined;
  const patience = new Patience(clock, SILENCE_MS, (ms) => {
    silence = new Failure('deadline_exceeded', `${address} sent no page of its snapshot for ${ms} ms`);
    link.abort(silence);
  });
  const pages = ask(network, address, 'snapshot', {}, { signal: link.signal, timeoutMs: undefined });
  try {
    for (;;) {
      const next = await patience.watch(pages.next(), () => false);
      if (next.done === true) return;
      yield next.value;
    }
  } catch (error) {
    throw silence ?? error;
  } finally {
    link.abort();
    link.release();
  }
}
