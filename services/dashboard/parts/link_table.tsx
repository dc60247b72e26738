/** Links: how much moves between which nodes, how fast, and what fails. */
import type { VNode } from 'preact';
import type { LinkView } from '../../../shared/protocol/router_api.ts';
import { perRecord, speedOf } from '../flow_sums.ts';
import { bytes, bytesPerSecond, count, duration } from '../format.ts';
import { store } from '../page.ts';
import { NodeLink } from './common.tsx';
import { Table, type Column } from './table.tsx';

const WAYS: Readonly<Record<string, string>> = {
  memory: 'memory that both processes share',
  socket: 'a TCP connection for blocks only',
  call: 'answers of calls (gRPC)',
};

const COLUMNS: readonly Column<LinkView>[] = [
  { label: 'From', title: 'Node that had the blocks', cell: ({ from }) => <NodeLink name={from} /> },
  { label: 'To', title: 'Node that read them', cell: ({ to }) => <NodeLink name={to} /> },
  { label: 'Way', rank: 1, title: 'How the blocks travel', cell: ({ way }) => <span title={WAYS[way]}>{way}</span> },
  {
    label: 'Now',
    title: 'Bytes a second of the last ten seconds',
    isNumber: true,
    cell: (link) => bytesPerSecond(link.bytes_per_s),
    sort: (link) => link.bytes_per_s,
  },
  {
    label: 'Speed',
    title: 'Bytes a second while blocks moved, since the reader started',
    isNumber: true,
    rank: 2,
    cell: (link) => bytesPerSecond(speedOf(link)),
    sort: (link) => speedOf(link) ?? -1,
  },
  {
    label: 'Moved',
    title: 'Since the reader started',
    isNumber: true,
    rank: 1,
    cell: (link) => bytes(link.bytes),
    sort: (link) => link.bytes,
  },
  {
    label: 'Records',
    title: 'Blocks and recurrent states that moved',
    isNumber: true,
    rank: 2,
    cell: (link) => count(link.records),
    sort: (link) => link.records,
  },
  {
    label: 'Per record',
    title: 'Time in which one record moves',
    isNumber: true,
    rank: 2,
    cell: (link) => duration(perRecord(link)),
    sort: (link) => perRecord(link) ?? -1,
  },
  {
    label: 'Time',
    title: 'Time in which anything moved, since the reader started',
    isNumber: true,
    rank: 3,
    cell: (link) => duration(link.ms > 0 ? link.ms : null),
    sort: (link) => link.ms,
  },
  {
    label: 'Failures',
    title: 'Fetches that failed',
    isNumber: true,
    rank: 1,
    cell: ({ failures }) => (failures > 0 ? <span class="word bad">{count(failures)}</span> : '0'),
    sort: (link) => link.failures,
  },
];

/** Ids of links, those before the others over which most moves now. */
export function busiestFirst(links: readonly LinkView[], idOf: (link: LinkView) => string): readonly string[] {
  return [...links].sort((a, b) => b.bytes_per_s - a.bytes_per_s || b.bytes - a.bytes).map(idOf);
}

/** A table of links. */
export function LinkTable(props: {
  readonly ids: readonly string[];
  readonly empty: string;
  readonly height?: number;
}): VNode {
  return (
    <Table
      label="Links"
      columns={COLUMNS}
      ids={props.ids}
      row={(id) => store.flows.row(id)}
      empty={props.empty}
      height={props.height ?? 480}
    />
  );
}
