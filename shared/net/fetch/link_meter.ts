/**
 * Measures the link from one holder to this reader by one fetch: bytes, the time in which they moved, and the latency of the holder.
 *
 *   over a data channel   request ──latency──► offer ... ask ──moving──► last record of those asked for ... ask ──moving──► ...
 *   over the call         request ──latency──► slice ──moving──► slice ──moving──► ...
 *
 * A reader asks a data channel only for records and frames that their holder has offered, and a holder offers only what it has. So while
 * something that was asked for has not arrived, bytes move, and the rest of the time the holder computes or the reader has no room. Over
 * the call nothing announces a record: the time that the reader waits for a slice counts, but for the first one of a record that the
 * holder may have been computing, and but for one that came while the reader was not reading.
 */
import type { Clock } from '../../base/clock.ts';
import type { FetchReply } from '../../protocol/messages.ts';
import type { Arrived, TransferWay } from './fetch_events.ts';
import type { FlowAmounts } from './flows.ts';
import { nothingMoved } from './transfer.ts';

/** Bytes that came by one way, the milliseconds in which they moved, and those from the request to its first answer; -1: not measured. */
export interface LinkMeasure {
  readonly way: TransferWay;
  readonly bytes: number;
  readonly movingMs: number;
  readonly latencyMs: number;
}

/** A call that is read later than this after its request may have its answer already, so its latency is not measured. */
const AT_ONCE_MS = 1;

/** Meter of the link by which one fetch reads from one holder, over one call after the other. */
export class LinkMeter {
  readonly #clock: Pick<Clock, 'nowMs'>;
  /** Whether the holder may still compute what it is asked for. */
  readonly #isComputing: boolean;
  readonly #bytes = nothingMoved();
  readonly #movingMs = nothingMoved();
  #latencyMs = -1;
  /** When the request of the present call was sent; undefined: its latency is known, or cannot be measured. */
  #sentMs: number | undefined;
  /** Records and frames that the data channel was asked for and has not brought. */
  #numAsked = 0;
  #sinceMs = 0;
  /** Way by which bytes came last. */
  #lastWay: TransferWay | undefined;
  readonly #count: (way: TransferWay, amounts: FlowAmounts) => void;

  /** `count` is called with all that is measured, as it happens. */
  constructor(
    clock: Pick<Clock, 'nowMs'>,
    isComputing: boolean,
    count: (way: TransferWay, amounts: FlowAmounts) => void = () => undefined,
  ) {
    this.#clock = clock;
    this.#isComputing = isComputing;
    this.#count = count;
  }

  /** The request of a call was sent. */
  sent(): void {
    this.#numAsked = 0;
    this.#sentMs = this.#isComputing ? undefined : this.#clock.nowMs();
  }

  /** The reader begins to read the call's answers. */
  reads(): void {
    if (this.#clock.nowMs() - (this.#sentMs ?? 0) > AT_ONCE_MS) this.#sentMs = undefined;
  }

  /** The call has answered. `waitedMs`: how long the reader has waited; undefined: it was not reading all the time. */
  answered(
    { data, offset }: Pick<FetchReply, 'data' | 'offset'>,
    waitedMs: number | undefined,
    isFirst: boolean,
  ): void {
    if (this.#sentMs !== undefined) this.#latencyMs = this.#clock.nowMs() - this.#sentMs;
    this.#sentMs = undefined;
    if (data.length === 0 || waitedMs === undefined || isFirst || (this.#isComputing && offset === 0)) return;
    this.#bytes.call += data.length;
    this.#movingMs.call += waitedMs;
    this.#count('call', { ms: waitedMs });
  }

  /** The data channel was asked for so many records or frames that their holder has. */
  asked(count: number): void {
    if (this.#numAsked === 0) this.#sinceMs = this.#clock.nowMs();
    this.#numAsked += count;
  }

  /** So many records or frames have arrived over the data channel. */
  arrived(count: number, way: TransferWay): void {
    const nowMs = this.#clock.nowMs();
    this.#movingMs[way] += nowMs - this.#sinceMs;
    this.#count(way, { ms: nowMs - this.#sinceMs });
    this.#sinceMs = nowMs;
    this.#numAsked = Math.max(0, this.#numAsked - count);
  }

  /** The reader has read a record, or a frame, which may be the last one of its record. */
  read({ bytes, way, isLast, fault }: Pick<Arrived, 'isLast' | 'fault'> & { bytes: number; way: TransferWay }): void {
    this.#lastWay = way;
    if (way !== 'call') this.#bytes[way] += bytes;
    this.#count(way, { bytes, records: isLast ? 1 : 0, failures: fault === undefined ? 0 : 1 });
  }

  /** The call has broken, or was given up. `way`: the one by which its records were to come. */
  failed(way: TransferWay): void {
    this.#count(this.#lastWay ?? way, { failures: 1 });
  }

  /** Returns what was measured, for each way by which bytes came. */
  get measures(): readonly LinkMeasure[] {
    const ways: readonly TransferWay[] = ['memory', 'socket', 'call'];
    return ways
      .filter((way) => this.#bytes[way] > 0)
      .map((way) => ({ way, bytes: this.#bytes[way], movingMs: this.#movingMs[way], latencyMs: this.#latencyMs }));
  }
}
