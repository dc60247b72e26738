/**
 * The table of all views. Rows keep their place and their DOM nodes while their values change, so a selected text stays selected; only the
 * rows near the visible ones exist in the document. A table that grows at its top stands still while somebody reads it: while it is scrolled, or
 * text in it is selected.
 */
import { useComputed, useSignal, type ReadonlySignal } from '@preact/signals';
import type { ComponentChildren, VNode } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { count } from '../format.ts';
import { moveFocus } from './table_keys.ts';
import { rowWindow } from './row_window.ts';

/** Column of a table. */
export interface Column<Row> {
  readonly label: string;
  /** Sentence that explains the column. */
  readonly title?: string;
  readonly isNumber?: boolean;
  /** Columns of rank 2 are left out below 1,000 pixels, those of rank 3 below 1,400, those of rank 1 below 560; rank 0 always stays. */
  readonly rank?: 0 | 1 | 2 | 3;
  /** Whether the column takes the space that others leave. */
  readonly isWide?: boolean;
  /** Content of a cell. */
  readonly cell: (row: Row) => ComponentChildren;
  /** Value by which the column sorts; absent where it does not. */
  readonly sort?: (row: Row) => number | string;
}

/** Properties of a table. */
export interface TableProps<Row> {
  /** Name of the table, for screen readers. */
  readonly label: string;
  readonly columns: readonly Column<Row>[];
  readonly ids: readonly string[];
  /** Row of an id as a signal. */
  readonly row: (id: string) => ReadonlySignal<Row> | undefined;
  /** Height of a row in pixels. All rows have it; text that needs more is cut, so choose it for the longest text. */
  readonly rowHeight?: number;
  /** Height of the visible part in pixels. */
  readonly height?: number;
  /** Address that a row leads to: its first cell is the link. */
  readonly href?: (id: string) => string;
  readonly selected?: string | undefined;
  /** Whether new rows appear at the top, and so the table stands still while it is read. */
  readonly growsOnTop?: boolean;
  /** Text of an empty table. */
  readonly empty: string;
}

interface Sorting {
  readonly column: number;
  readonly isDescending: boolean;
}

/** A table with keyed rows. */
export function Table<Row>(props: TableProps<Row>): VNode {
  const { rowHeight = 34, height = 480 } = props;
  const scrolled = useSignal(0);
  const sorting = useSignal<Sorting | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const still = useStill(props, frame, scrolled);
  const ids = useSorted(props, still.ids, sorting.value);
  const { first, end } = rowWindow(ids.length, rowHeight, scrolled.value, height);
  const isLong = ids.length * rowHeight > height;
  if (ids.length === 0) return <p class="notice">{props.empty}</p>;
  return (
    <div class="table-box">
      {still.newer > 0 && (
        <button type="button" class="newer" onClick={still.resume}>
          Paused while you read: {count(still.newer)} newer. Show them
        </button>
      )}
      <div
        ref={frame}
        class="table-frame"
        role="region"
        aria-label={props.label}
        tabIndex={isLong ? 0 : -1}
        style={{ maxHeight: `${height}px` }}
        onScroll={(event) => (scrolled.value = event.currentTarget.scrollTop)}
        onKeyDown={moveFocus}
      >
        <table aria-label={props.label} aria-rowcount={ids.length + 1}>
          <Head columns={props.columns} sorting={sorting} />
          <tbody>
            <Gap pixels={first * rowHeight} />
            {ids.slice(first, end).map((id, i) => (
              <TableRow key={id} id={id} index={first + i + 2} height={rowHeight} table={props} />
            ))}
            <Gap pixels={(ids.length - end) * rowHeight} />
          </tbody>
        </table>
      </div>
    </div>
  );
}

const classOf = <Row,>({ rank = 0, isNumber, isWide }: Column<Row>): string =>
  [`rank-${rank}`, isNumber ? 'number' : '', isWide ? 'wide' : ''].filter(Boolean).join(' ');

function Head<Row>(props: {
  readonly columns: readonly Column<Row>[];
  readonly sorting: { value: Sorting | null };
}): VNode {
  const { columns, sorting } = props;
  const now = sorting.value;
  const turn = (column: number): void => {
    // First the largest, then the smallest, then the table's own order.
    if (now?.column !== column) sorting.value = { column, isDescending: true };
    else sorting.value = now.isDescending ? { column, isDescending: false } : null;
  };
  return (
    <thead>
      <tr aria-rowindex={1}>
        {columns.map((column, i) => {
          const sorted = now?.column !== i ? undefined : now.isDescending ? 'descending' : 'ascending';
          return (
            <th key={column.label} scope="col" class={classOf(column)} title={column.title} aria-sort={sorted}>
              {column.sort ? (
                <button type="button" onClick={() => turn(i)}>
                  {column.label}
                  <span aria-hidden="true">{sorted === undefined ? '' : sorted === 'ascending' ? ' ↑' : ' ↓'}</span>
                </button>
              ) : (
                column.label
              )}
            </th>
          );
        })}
      </tr>
    </thead>
  );
}

function TableRow<Row>(props: {
  readonly id: string;
  readonly index: number;
  readonly height: number;
  readonly table: TableProps<Row>;
}): VNode | null {
  const { id, table } = props;
  const row = table.row(id)?.value;
  if (row === undefined) return null;
  const href = table.href?.(id);
  return (
    <tr
      aria-rowindex={props.index}
      class={table.selected === id ? 'selected' : ''}
      aria-current={table.selected === id ? 'true' : undefined}
      style={{ height: `${props.height}px` }}
    >
      {table.columns.map((column, i) => (
        <td key={column.label} class={classOf(column)}>
          {i === 0 && href !== undefined ? <a href={href}>{column.cell(row)}</a> : column.cell(row)}
        </td>
      ))}
    </tr>
  );
}

/** Empty space in place of rows that are out of sight. */
function Gap({ pixels }: { readonly pixels: number }): VNode | null {
  return pixels <= 0 ? null : (
    <tr class="gap" aria-hidden="true" style={{ height: `${pixels}px` }}>
      <td />
    </tr>
  );
}

/** Ids by the column that was clicked. A column that sorts is read by the whole table, whose rows then move as values change. */
function useSorted<Row>(
  { columns, row }: TableProps<Row>,
  ids: readonly string[],
  sorting: Sorting | null,
): readonly string[] {
  const order = sorting && columns[sorting.column]?.sort;
  if (!order) return ids;
  const keyed = ids.map((id) => {
    const value = row(id)?.value;
    return { id, by: value === undefined ? '' : order(value) };
  });
  const sign = sorting.isDescending ? -1 : 1;
  const compare = (a: number | string, b: number | string): number =>
    typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b));
  return keyed.sort((a, b) => sign * compare(a.by, b.by)).map(({ id }) => id);
}

/** Order of a table that grows at its top: as it was when somebody began to read. */
function useStill<Row>(
  { ids, growsOnTop }: TableProps<Row>,
  frame: { readonly current: HTMLDivElement | null },
  scrolled: { value: number },
): { ids: readonly string[]; newer: number; resume: () => void } {
  const hasSelection = useSignal(false);
  const held = useRef<readonly string[] | null>(null);
  useEffect(() => {
    if (!growsOnTop) return undefined;
    const read = (): void => {
      const selection = getSelection();
      const anchor = selection?.anchorNode ?? null;
      hasSelection.value = selection?.isCollapsed === false && frame.current?.contains(anchor) === true;
    };
    document.addEventListener('selectionchange', read);
    return () => document.removeEventListener('selectionchange', read);
  }, [growsOnTop]);
  const isAtTop = useComputed(() => scrolled.value <= 0);
  if (!growsOnTop || (isAtTop.value && !hasSelection.value)) held.current = null;
  else held.current ??= ids;
  const shown = held.current ?? ids;
  const top = shown[0];
  return {
    ids: shown,
    newer: top === undefined ? 0 : Math.max(0, ids.indexOf(top)),
    resume: () => {
      getSelection()?.removeAllRanges();
      frame.current?.scrollTo({ top: 0 });
      hasSelection.value = false;
    },
  };
}
