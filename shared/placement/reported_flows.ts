/** Flows of blocks into a member, as its heartbeats report them: the latest of each holder and way. */
import type { Flow } from '../protocol/membership.ts';

/** Most flows that are kept of a member (P1), as many as a member counts. */
const MAX_FLOWS = 1_024;

/** Flows by way and address of the holder, the ones that were reported last at the end. */
export type ReportedFlows = Map<string, Flow>;

/** Takes the flows of a heartbeat over; beyond MAX_FLOWS those that were reported least recently are forgotten. */
export function keepFlows(flows: ReportedFlows, reported: readonly Flow[]): void {
  for (const flow of reported) {
    const key = `${flow.way} ${flow.from}`;
    flows.delete(key);
    flows.set(key, flow);
  }
  for (const key of flows.keys()) {
    if (flows.size <= MAX_FLOWS) break;
    flows.delete(key);
  }
}
