/** Kinds of events as words, and which of them are bad news. */
import type { ClusterEvent, EventKind } from '../../shared/protocol/router_api.ts';

/** Tone of an event. */
export type Tone = 'good' | 'warn' | 'bad' | 'plain';

const WORDS: Readonly<Record<EventKind, { readonly word: string; readonly tone: Tone }>> = {
  router_started: { word: 'router started', tone: 'plain' },
  joined: { word: 'joined', tone: 'good' },
  left: { word: 'left', tone: 'plain' },
  lost: { word: 'lost', tone: 'bad' },
  refused: { word: 'refused', tone: 'bad' },
  suspect: { word: 'suspect', tone: 'bad' },
  unreachable: { word: 'unreachable', tone: 'bad' },
  reachable: { word: 'reachable again', tone: 'good' },
  draining: { word: 'draining', tone: 'warn' },
  error: { word: 'error', tone: 'bad' },
  policy: { word: 'policy', tone: 'plain' },
  alarm: { word: 'alarm', tone: 'bad' },
  alarm_ended: { word: 'alarm ended', tone: 'good' },
};

/** Word and tone of an event. Kinds of a newer router are their own word. */
export function eventWord({ kind }: ClusterEvent): { readonly word: string; readonly tone: Tone } {
  return Object.hasOwn(WORDS, kind) ? WORDS[kind] : { word: kind.replaceAll('_', ' '), tone: 'plain' };
}

/** Two lists of events as one, newest first, each event once. */
export function mergedEvents(a: readonly ClusterEvent[], b: readonly ClusterEvent[]): readonly ClusterEvent[] {
  const byId = new Map([...a, ...b].map((event) => [event.id, event]));
  return [...byId.values()].sort((x, y) => y.id - x.id);
}
