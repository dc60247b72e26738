/** The view Overview: how much, how fast, from where, and what changed. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import type { EventPage } from '../../../shared/protocol/router_api.ts';
import { mergedEvents } from '../event_words.ts';
import { count, duration, NONE, percent, short } from '../format.ts';
import { store } from '../page.ts';
import { AsOf, Card } from '../parts/common.tsx';
import { EventList } from '../parts/event_list.tsx';
import { RangeChoice, TimeChart } from '../parts/time_chart.tsx';
import { useJson } from '../parts/use_json.ts';
import { useTimeline } from '../parts/use_timeline.ts';
import { HIT_SOURCES, RATES, SOURCES, TBT, TTFT } from '../series.ts';
import { RANGES, type Timeline } from '../timeline.ts';
import { SlowestCard } from './requests/slowest_card.tsx';

/** Events that the list has. */
const LISTED = 40;

/** Series that the view asks for. */
const NAMES = [...RATES, ...SOURCES, ...TTFT, ...TBT].map(({ name }) => name).concat('output_tokens_per_s');

/** The view Overview. */
export function Overview(): VNode {
  const range = useSignal(RANGES[0]);
  const live = useTimeline('cluster', RANGES[0], NAMES);
  const isLong = range.value !== RANGES[0];
  const long = useTimeline(isLong ? 'cluster' : null, RANGES[1], NAMES);
  const state = isLong ? long : live;
  const older = useJson<EventPage>('api/events?limit=500', 0);
  const events = mergedEvents(store.events.value, older.body?.events ?? []);
  const common = { state, range: range.value, events };
  return (
    <>
      <Now timeline={live.timeline} />
      <div class="bar wide">
        <RangeChoice value={range.value} onChange={(chosen) => (range.value = chosen)} />
        <span class="soft">Dashed lines in the charts are events: point at one to read it.</span>
      </div>
      <TimeChart {...common} title="Requests a second" series={RATES} formatY={short} />
      <TimeChart
        {...common}
        title="Prompt tokens a second, by where their KV came from"
        series={SOURCES}
        formatY={short}
        isStacked
        hasShares
      />
      <TimeChart {...common} title="Time to first token" series={TTFT} formatY={duration} />
      <TimeChart {...common} title="Time between tokens" series={TBT} formatY={duration} />
      <SlowestCard />
      <Card title="What changed" wide>
        <EventList events={events} limit={LISTED} />
      </Card>
    </>
  );
}

/** Milliseconds over which the large numbers are means: one second alone has few requests. */
const RECENT_MS = 10_000;

/** The newest values as large numbers. */
function Now({ timeline }: { readonly timeline: Timeline | undefined }): VNode {
  const mean = (name: string): number | null => timeline?.mean(name, RECENT_MS) ?? null;
  const latest = (name: string): string => duration(timeline?.latest(name, 60_000) ?? null);
  const sum = (names: readonly { readonly name: string }[]): number =>
    names.reduce((total, { name }) => total + (timeline?.mean(name, 60_000) ?? 0), 0);
  const prompts = sum(SOURCES);
  const hits = prompts > 0 ? percent(sum(HIT_SOURCES) / prompts) : NONE;
  const now = store.now.value;
  const isMean = 'Mean of the last ten seconds';
  const isLatest = 'Nineteen of twenty values of the newest second with values were at most this';
  return (
    <section class="now-tiles wide" aria-label="Now">
      <Tile label="Requests a second" value={short(mean('requests_per_s'))} title={isMean} />
      <Tile label="Failures a second" value={short(mean('failed_per_s'))} title={isMean} />
      <Tile
        label="Hit rate"
        value={hits}
        title="Share of the last minute's prompt tokens whose KV was in the pool before their request"
      />
      <Tile label="Time to first token, p95" value={latest('ttft_ms_p95')} title={isLatest} />
      <Tile label="Time between tokens, p95" value={latest('tbt_ms_p95')} title={isLatest} />
      <Tile label="Tokens generated a second" value={short(mean('output_tokens_per_s'))} title={isMean} />
      <Tile
        label="Running and waiting"
        value={`${count(now['running'])} + ${count(now['waiting'])}`}
        title="Sequences that instances compute, and those that wait for room"
      />
      <div class="tile-as-of">
        <AsOf />
      </div>
    </section>
  );
}

function Tile(props: { readonly label: string; readonly value: string; readonly title: string }): VNode {
  return (
    <div class="tile" title={props.title}>
      <span class="tile-value">{props.value}</span>
      <span class="tile-label">{props.label}</span>
    </div>
  );
}
