/**
 * Slots that a holder has offered over its data channels and whose bytes have not been sent: no more than a share of its memory is on loan at a
 * time, so that readers that stop leave room for others (P1).
 */
import type { TransferThreadEvent, TransferThreadMethods } from '../../shared/net/transfer_thread/transfer_methods.ts';

interface OfferedSlot {
  readonly stream: string;
  readonly index: number;
  readonly slot: number;
}

export class BorrowedSlots {
  readonly #offered = new Map<string, OfferedSlot>();
  /** Data channels that were let in and have not left; what is offered to another goes nowhere. */
  readonly #channels = new Set<number>();
  readonly #onChange: (numSlots: number) => void;

  /** `onChange` is called with the number of different slots after every offer. */
  constructor(onChange: (numSlots: number) => void) {
    this.#onChange = onChange;
  }

  /** The transfer thread's methods, whose offers are counted. */
  counted(transferThread: TransferThreadMethods): TransferThreadMethods {
    return {
      ...transferThread,
      admit: (of) => {
        this.#channels.add(of.channel);
        return transferThread.admit(of);
      },
      offer: (of) => {
        if (!this.#channels.has(of.channel)) {
          transferThread.offer(of);
          return;
        }
        const stream = streamOf(of);
        of.records.indices.forEach((index, i) => {
          const slot = of.records.slots[i] ?? -1;
          this.#offered.set(`${stream} ${index}`, { stream, index, slot });
        });
        this.#onChange(new Set([...this.#offered.values()].map(({ slot }) => slot)).size);
        transferThread.offer(of);
      },
    };
  }

  /** Slots of which an event says that nobody reads them any more are not counted any longer. */
  heard(event: TransferThreadEvent): void {
    if (event.kind === 'sent') for (const index of event.indices) this.#offered.delete(`${streamOf(event)} ${index}`);
    if (event.kind === 'retracted') this.#forget((stream) => stream === streamOf(event));
    if (event.kind !== 'left') return;
    this.#channels.delete(event.channel);
    this.#forget((stream) => stream.startsWith(`${event.channel} `));
  }

  #forget(isGone: (stream: string) => boolean): void {
    for (const [name, { stream }] of this.#offered) if (isGone(stream)) this.#offered.delete(name);
  }
}

function streamOf({ channel, stream }: { readonly channel: number; readonly stream: number }): string {
  return `${channel} ${stream}`;
}
