/** The view Overview: how much, how fast, from where, and what changed. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import type { EventPage } from '../../observe/api_types.ts';
import { mergedEvents } from '../event_words.ts';
import { count, duration, NONE, percent, short } from '../format.ts';
import { store } from '../page.ts';
import { AsOf, Card } from '../parts/common.tsx';
import { EventList } from '../parts/event_list.tsx';
import { RangeChoice, TimeChart } from '../parts/time_chart.tsx';
import { useJson } from '../parts/use_json.ts';
import { useTimeline } from '../parts/use_timeline.ts';
import { HIT_SOURCES, RATES, SOURCES, TBT, TTFT } from '../series.ts';
import { RANGES } from '../timeline.ts';

/** Events that the list has. */
const LISTED = 40;

/** The view Overview. */
export function Overview(): VNode {
  const range = useSignal(RANGES[0]);
  const state = useTimeline('cluster', range.value);
  const older = useJson<EventPage>('api/events?limit=500', 0);
  const events = mergedEvents(store.events.value, older.body?.events ?? []);
  const common = { state, range: range.value, events };
  return (
    <>
      <Now />
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
      <Card title="What changed" wide>
        <EventList events={events} limit={LISTED} />
      </Card>
    </>
  );
}

/** The newest values as large numbers. */
function Now(): VNode {
  const now = store.now.value;
  const sum = (names: readonly { readonly name: string }[]): number =>
    names.reduce((total, { name }) => total + (now[name] ?? 0), 0);
  const prompts = sum(SOURCES);
  const hits = prompts > 0 ? percent(sum(HIT_SOURCES) / prompts) : NONE;
  return (
    <section class="tiles wide" aria-label="Now">
      <Tile label="Requests a second" value={short(now['requests_per_s'])} />
      <Tile label="Errors a second" value={short(now['errors_per_s'])} />
      <Tile
        label="Hit rate"
        value={hits}
        title="Share of the prompt tokens whose KV was in the pool before the request"
      />
      <Tile label="Time to first token, p95" value={duration(now['ttft_p95_ms'])} />
      <Tile label="Time between tokens, p95" value={duration(now['tbt_p95_ms'])} />
      <Tile label="Tokens generated a second" value={short(now['output_tokens_per_s'])} />
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

function Tile(props: { readonly label: string; readonly value: string; readonly title?: string }): VNode {
  return (
    <div class="tile" title={props.title}>
      <span class="tile-value">{props.value}</span>
      <span class="tile-label">{props.label}</span>
    </div>
  );
}
