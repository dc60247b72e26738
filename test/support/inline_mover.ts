/** A mover in the thread of its test. */
import { systemClock } from '../../shared/base/clock.ts';
import type { Slab } from '../../shared/kv/slab.ts';
import type { HostMemory } from '../../shared/net/mover/host_memory.ts';
import type { Mover } from '../../shared/net/mover/mover.ts';
import { moverOn, type MoverEvent } from '../../shared/net/mover/mover_worker.ts';
import type { WantedRecords } from '../../shared/net/mover/pulled_lanes.ts';
import { tcpSockets } from '../../shared/net/mover/tcp_sockets.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';

/** `onAsk`: records are asked for over a lane. */
export function inlineMover(
  slab: Slab,
  hostMemory: HostMemory,
  onAsk: (records: WantedRecords) => void = () => undefined,
  tls?: TlsTexts,
): Mover {
  const listeners = new Set<(event: MoverEvent) => void>();
  const methods = moverOn(tcpSockets(tls), hostMemory, systemClock, (event) => {
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
    tell: (method: string, argument: unknown) => {
      if (method === 'ask') onAsk((argument as { records: WantedRecords }).records);
      run(method, argument);
    },
    close: () => Promise.resolve(),
  } as unknown as Mover;
}
