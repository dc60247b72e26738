/** A transfer thread in the thread of its test. */
import { systemClock } from '../../shared/base/clock.ts';
import { Current } from '../../shared/base/current.ts';
import type { Slab } from '../../shared/kv/slab.ts';
import type { HostMemory } from '../../shared/net/transfer_thread/host_memory.ts';
import type { TransferThread } from '../../shared/net/transfer_thread/transfer_thread.ts';
import { transferThreadOn, type TransferThreadEvent } from '../../shared/net/transfer_thread/transfer_methods.ts';
import type { WantedRecords } from '../../shared/net/transfer_thread/channel_client.ts';
import { tcpSockets } from '../../shared/net/transfer_thread/tcp_sockets.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';

/** `onAsk`: records are asked for over a data channel. */
export function inlineTransferThread(
  slab: Slab,
  hostMemory: HostMemory,
  onAsk: (records: WantedRecords) => void = () => undefined,
  tls?: TlsTexts | Current<TlsTexts>,
): TransferThread {
  const listeners = new Set<(event: TransferThreadEvent) => void>();
  const methods = transferThreadOn(tcpSockets(tls && Current.of(tls)), hostMemory, systemClock, (event) => {
    // Never before whoever caused it goes on.
    void systemClock.turn().then(() => {
      for (const listener of listeners) listener(event);
    });
  });
  methods.attach({ memory: slab.memory, isShared: true });
  const run = (method: string, argument: unknown): unknown =>
    Reflect.apply(Reflect.get(methods, method) as (argument: unknown) => unknown, methods, [structuredClone(argument)]);
  return {
    listeners,
    call: (method: string, argument: unknown) => Promise.resolve(run(method, argument)),
    notify: (method: string, argument: unknown) => {
      if (method === 'ask') onAsk((argument as { records: WantedRecords }).records);
      run(method, argument);
    },
    close: () => Promise.resolve(),
  } as unknown as TransferThread;
}
