/** List of requests with filters, search and export. Filters stay while other views are shown. */
import { signal, useComputed, useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useMemo } from 'preact/hooks';
import { REASON_NAMES } from '../../model/miss_sentences.ts';
import { promptTokens } from '../../model/request_detail.ts';
import { hasEnded, NO_FILTER, PHASES, type RequestFilter } from '../../model/request_filter.ts';
import type { MissReason, RequestRow } from '../../../../shared/protocol/router_api.ts';
import { clockTime, count, duration, NONE, percent, plural } from '../../format.ts';
import { host, store } from '../../page.ts';
import { AsOf, Card, Notice } from '../../parts/common.tsx';
import { saveJson } from '../../parts/save_json.ts';
import { Table, type Column } from '../../parts/table.tsx';
import { viewportHeight } from '../../parts/viewport.ts';
import { hrefOf } from '../../route.ts';
import { PAGE_ROWS, RequestRows } from './request_rows.ts';

/** Pixels of the page above and below the list. */
const ROOM_PIXELS = 290;

const filter = signal<RequestFilter>(NO_FILTER);

/** State of a request as a word with a colour. */
export function PhaseWord({ phase }: { readonly phase: string }): VNode {
  const tone = phase === 'finished' ? 'good' : phase === 'failed' ? 'bad' : hasEnded({ phase }) ? 'warn' : 'open';
  return <span class={`word ${tone}`}>{phase}</span>;
}

function reusedShare({ sources, prompt_tokens: total }: RequestRow): number | null {
  const { device, dram, instance, store_dram: storeDram, store_disk: storeDisk } = sources;
  return total === 0 ? null : (device + dram + instance + storeDram + storeDisk) / total;
}

/** Returns the reason of most of the computed tokens, the unavoidable end of a prompt aside, as words that fit a column. */
export function mainReason({ misses }: RequestRow): string {
  const [first] = Object.entries(misses)
    .filter(([reason, tokens]) => reason !== 'tail' && tokens > 0)
    .sort((a, b) => b[1] - a[1]);
  return first ? `${REASON_NAMES[first[0] as MissReason]} (${count(first[1])})` : NONE;
}

const COLUMNS: readonly Column<RequestRow>[] = [
  { label: 'Request', cell: ({ id }) => <span class="id">{id}</span> },
  { label: 'Started', rank: 1, title: "On the router's clock", cell: ({ started_at: at }) => clockTime(at) },
  { label: 'State', cell: ({ phase }) => <PhaseWord phase={phase} /> },
  { label: 'Model', rank: 3, cell: ({ model }) => <span class="cut">{model ?? NONE}</span> },
  {
    label: 'Prompt',
    rank: 1,
    isNumber: true,
    title: 'Tokens of the prompt',
    cell: (row) => count(promptTokens(row)),
    sort: ({ prompt_tokens: tokens }) => tokens,
  },
  {
    label: 'Reused',
    rank: 1,
    isNumber: true,
    title: 'Share of the prompt whose KV was there before the request, on any node',
    cell: (row) => percent(reusedShare(row)),
    sort: (row) => reusedShare(row) ?? -1,
  },
  {
    label: 'Output',
    rank: 2,
    isNumber: true,
    title: 'Tokens of the answer so far',
    cell: ({ output_tokens: tokens }) => count(tokens),
    sort: ({ output_tokens: tokens }) => tokens,
  },
  {
    label: 'TTFT',
    isNumber: true,
    title: 'Time to first token',
    cell: ({ ttft_ms: ms }) => duration(ms),
    sort: ({ ttft_ms: ms }) => ms ?? -1,
  },
  {
    label: 'Total',
    rank: 1,
    isNumber: true,
    title: 'Time from arrival to the last token',
    cell: ({ total_ms: ms }) => duration(ms),
    sort: ({ total_ms: ms }) => ms,
  },
  {
    label: 'Ran on',
    rank: 2,
    title: 'Instance that computed the prompt, and the one that generated',
    cell: ({ prefill, decode }) => (
      <span class="cut">{prefill === null ? (decode ?? NONE) : `${prefill} → ${decode ?? NONE}`}</span>
    ),
  },
  {
    label: 'Tries',
    rank: 3,
    isNumber: true,
    title: 'Attempts; more than one after a failure',
    cell: ({ attempts }) => count(attempts),
    sort: ({ attempts }) => attempts,
  },
  {
    label: 'Failed or computed because',
    rank: 2,
    isWide: true,
    title: 'Error of a request that failed; of others the reason of most computed tokens',
    cell: (row) => (
      <span class="cut" title={row.error ?? undefined}>
        {row.error ?? mainReason(row)}
      </span>
    ),
  },
];

/** The columns of a router that asks for keys: its requests have a tenant each. */
const TENANT_COLUMNS = COLUMNS.toSpliced(
  COLUMNS.findIndex(({ label }) => label === 'Model'),
  0,
  {
    label: 'Tenant',
    rank: 2,
    title: 'Tenant of the key that the request came with',
    cell: ({ tenant }) => <span class="cut">{tenant ?? NONE}</span>,
  },
);

/** List of requests. */
export function RequestList(): VNode {
  const now = filter.value;
  const otherRouters = store.otherRouters.value;
  const list = useMemo(() => new RequestRows(now), [now, otherRouters]);
  useEffect(() => () => list.close(), [list]);
  const state = list.state.value;
  const ids = list.rows.ids.value;
  const hasTenants = typeof list.rows.row(ids[0] ?? '')?.value.tenant === 'string';
  return (
    <Card
      wide
      title="Requests"
      note={
        <>
          {plural(ids.length, 'request')} shown
          {state.kept !== undefined && ` of ${count(state.kept)} kept`} ·{' '}
          <AsOf at={Math.max(state.asOf ?? 0, store.asOf.value ?? 0) || undefined} />
        </>
      }
    >
      <Filters list={list} />
      {state.error !== undefined && <Notice error={state.error}>{''}</Notice>}
      <Table
        label="List of requests"
        columns={hasTenants ? TENANT_COLUMNS : COLUMNS}
        ids={ids}
        row={(id) => list.rows.row(id)}
        height={Math.max(340, viewportHeight.value - ROOM_PIXELS)}
        href={(id) => hrefOf('requests', id)}
        growsOnTop={now.order === 'newest'}
        empty={state.isLoading ? 'Loading…' : 'No request passes the filter.'}
      />
      {state.next !== null && (
        <button type="button" class="more" disabled={state.isLoading} onClick={() => void list.loadMore()}>
          {state.isLoading ? 'Loading…' : `Show ${PAGE_ROWS} more`}
        </button>
      )}
    </Card>
  );
}

function Filters({ list }: { readonly list: RequestRows }): VNode {
  const change = (part: Partial<RequestFilter>): void => {
    filter.value = { ...filter.peek(), ...part };
  };
  const models = useComputed(() => namesOf(store.nodes.all().map(({ model }) => model)));
  const nodes = useComputed(() =>
    namesOf(store.nodes.all().flatMap(({ name, role }) => (role === 'decode' || role === 'prefill' ? [name] : []))),
  );
  const tenants = namesOf(list.rows.all().map(({ tenant: name }) => name ?? null));
  const { text, phase, model, tenant, node, order } = filter.value;
  return (
    <form class="filters" role="search" aria-label="Filter requests" onSubmit={(event) => event.preventDefault()}>
      <SearchField text={text} onChange={(value) => change({ text: value })} />
      <Choice label="State" value={phase} options={PHASES} onChange={(value) => change({ phase: value })} />
      <Choice label="Model" value={model} options={models.value} onChange={(value) => change({ model: value })} />
      {(tenants.length > 0 || tenant !== '') && (
        <Choice label="Tenant" value={tenant} options={tenants} onChange={(value) => change({ tenant: value })} />
      )}
      {nodes.value.length <= MAX_CHOICES ? (
        <Choice label="Node" value={node} options={nodes.value} onChange={(value) => change({ node: value })} />
      ) : (
        <NodeField names={nodes.value} value={node} onChange={(value) => change({ node: value })} />
      )}
      <label class="check">
        <input
          type="checkbox"
          checked={phase === 'failed'}
          onChange={(event) => change({ phase: event.currentTarget.checked ? 'failed' : '' })}
        />
        Failed only
      </label>
      <label class="check">
        <input
          type="checkbox"
          checked={order === 'slowest'}
          onChange={(event) => change({ order: event.currentTarget.checked ? 'slowest' : 'newest' })}
        />
        Slowest first
      </label>
      <span class="spring" />
      <button
        type="button"
        title="Save the shown rows as a JSON file"
        onClick={() => saveJson('penstock-requests', list.rows.all())}
      >
        Export
      </button>
    </form>
  );
}

/** Names that one can choose from; in a larger cluster a name is typed. */
const MAX_CHOICES = 60;

/** Milliseconds after the last key before a search begins. */
const SEARCH_PAUSE_MS = 250;

function SearchField(props: { readonly text: string; readonly onChange: (text: string) => void }): VNode {
  const pause = useMemo(() => ({ cancel: (): void => undefined }), []);
  useEffect(() => () => pause.cancel(), [pause]);
  return (
    <label class="search">
      <span>Search</span>
      <input
        type="search"
        value={props.text}
        placeholder="Request id or client's id"
        onInput={(event) => {
          const { value } = event.currentTarget;
          pause.cancel();
          pause.cancel = host.later(SEARCH_PAUSE_MS, () => props.onChange(value));
        }}
      />
    </label>
  );
}

/** Field for the name of a node, with some names that fit. */
function NodeField(props: {
  readonly names: readonly string[];
  readonly value: string;
  readonly onChange: (value: string) => void;
}): VNode {
  const typed = useSignal(props.value);
  const fitting = props.names.filter((name) => name.includes(typed.value)).slice(0, MAX_CHOICES);
  return (
    <label>
      <span>Node</span>
      <input
        type="search"
        list="node-names"
        value={typed.value}
        placeholder="any"
        onInput={(event) => (typed.value = event.currentTarget.value)}
        onChange={(event) => props.onChange(event.currentTarget.value.trim())}
      />
      <datalist id="node-names">
        {fitting.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </label>
  );
}

function Choice(props: {
  readonly label: string;
  readonly value: string;
  readonly options: readonly string[];
  readonly onChange: (value: string) => void;
}): VNode {
  // A chosen name stays, also when it is gone from the cluster.
  const options =
    props.value === '' || props.options.includes(props.value) ? props.options : [props.value, ...props.options];
  return (
    <label>
      <span>{props.label}</span>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        <option value="">any</option>
        {options.map((option) => (
          <option key={option} value={option}>
            {option}
          </option>
        ))}
      </select>
    </label>
  );
}

function namesOf(names: readonly (string | null)[]): readonly string[] {
  return [...new Set(names.flatMap((name) => (name === null ? [] : [name])))].sort();
}
