/** Names of the kinds of events. */
import type { EventKind } from '../../../shared/protocol/router_api.ts';

const kinds: Readonly<Record<EventKind, true>> = {
  router_started: true,
  joined: true,
  left: true,
  lost: true,
  refused: true,
  suspect: true,
  unreachable: true,
  reachable: true,
  draining: true,
  error: true,
  policy: true,
  alarm: true,
  alarm_ended: true,
};

/** All kinds of events that `/api/events` can be asked for. */
export const EVENT_KINDS: readonly string[] = Object.keys(kinds);
