/**
 * Counts what a process has fetched from each holder over each way, and reports the counts in heartbeats a few at a time:
 *
 *   add ──► changed, sent with one of the next heartbeats ──► sent again after REPEAT_AFTER heartbeats, for a router that has missed one
 *
 * Bounded (P1): beyond MAX_FLOWS flows the one that was used least recently is forgotten, and begins at zero when it is used again.
 */
import type { Flow } from '../../protocol/membership.ts';
import type { TransferWay } from './fetch_events.ts';

/** Most flows that are counted: pairs of a holder and a way. */
const MAX_FLOWS = 1_024;
/** Most flows of one heartbeat; all of them have had their turn within REPEAT_AFTER heartbeats. */
const MAX_REPORTED = 64;
/** Number of heartbeats after which a flow is sent again that has not changed. */
const REPEAT_AFTER = 20;

/** Amounts that are added to a flow: bytes, whole records, milliseconds in which bytes moved, and fetches or records that failed. */
export type FlowAmounts = Partial<Pick<Flow, 'bytes' | 'records' | 'ms' | 'failures'>>;

interface CountedFlow {
  readonly from: string;
  readonly way: TransferWay;
  bytes: number;
  records: number;
  ms: number;
  failures: number;
  /** Number of the report that had it last. */
  sentAt: number;
}

/** Counts of fetched bytes, records, milliseconds and failures by holder and way, since the process started. */
export class FetchFlows {
  /** Flows by way and address, least recently used first. */
  readonly #flows = new Map<string, CountedFlow>();
  /** Keys of the flows that have changed since they were reported, in the order of that change. */
  readonly #changed = new Set<string>();
  #numReports = 0;

  /** Adds to the flow from the holder at `from`. */
  add(from: string, way: TransferWay, { bytes = 0, records = 0, ms = 0, failures = 0 }: FlowAmounts): void {
    const key = `${way} ${from}`;
    const flow = this.#flows.get(key) ?? { from, way, bytes: 0, records: 0, ms: 0, failures: 0, sentAt: 0 };
    this.#flows.delete(key);
    this.#flows.set(key, flow);
    this.#changed.add(key);
    flow.bytes += bytes;
    flow.records += records;
    flow.ms += ms;
    flow.failures += failures;
    for (const old of this.#flows.keys()) {
      if (this.#flows.size <= MAX_FLOWS) break;
      this.#flows.delete(old);
      this.#changed.delete(old);
    }
  }

  /** Returns the flows for the next heartbeat: those that have changed, then those whose turn it is to be repeated. */
  report(): Flow[] {
    this.#numReports++;
    const keys = new Set<string>();
    for (const key of this.#changed) {
      if (keys.size === MAX_REPORTED) break;
      keys.add(key);
      this.#changed.delete(key);
    }
    for (const [key, { sentAt }] of this.#flows) {
      if (keys.size === MAX_REPORTED) break;
      if (this.#numReports - sentAt >= REPEAT_AFTER) keys.add(key);
    }
    return [...keys].flatMap((key) => {
      const flow = this.#flows.get(key);
      if (!flow) return [];
      flow.sentAt = this.#numReports;
      const { from, way, bytes, records, ms, failures } = flow;
      return [{ from, way, bytes, records, ms: Math.round(ms * 1_000) / 1_000, failures }];
    });
  }
}
