/** Series over time in a component. */
import { useMemo } from 'preact/hooks';
import type { HistoryBody } from '../../../shared/protocol/router_api.ts';
import { store } from '../page.ts';
import { Timeline, type Range } from '../timeline.ts';
import { useJson } from './use_json.ts';

/** Series as a component sees them. */
export interface TimelineState {
  readonly timeline: Timeline | undefined;
  readonly error: string | undefined;
}

/**
 * Series of a scope (`cluster`, `role:decode`, `model:NAME`, `node:NAME`), none for the scope null. Those of the cluster go on with every tick
 * of the stream; others are asked for again each step, at most every ten seconds.
 *
 * @param names series that are asked for; their order and number must not change.
 */
export function useTimeline(scope: string | null, { spanMs, stepMs }: Range, names: readonly string[]): TimelineState {
  const isLive = scope === 'cluster' && stepMs === 1_000;
  const path = scope === null ? null : pathOf(scope, stepMs, names);
  const { body, error } = useJson<HistoryBody>(path, isLive ? 0 : Math.max(10_000, stepMs));
  const timeline = useMemo(() => body && new Timeline(body, spanMs), [body, spanMs]);
  const asOf = isLive ? store.asOf.value : null;
  // The same time is added once, however often the component is drawn.
  if (timeline && asOf !== null) timeline.append(asOf, chosen(store.now.peek(), names));
  return { timeline, error };
}

function pathOf(scope: string, stepMs: number, names: readonly string[]): string {
  return `api/history?scope=${encodeURIComponent(scope)}&step=${stepMs}&series=${names.join(',')}`;
}

function chosen(
  now: Readonly<Record<string, number | null>>,
  names: readonly string[],
): Readonly<Record<string, number | null>> {
  return Object.fromEntries(names.map((name) => [name, now[name] ?? null]));
}
