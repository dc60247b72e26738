/**
 * The table of all views. Rows keep their place and their DOM nodes while their values change, so a selected text stays selected; only the
 * rows near the visible ones exist in the document. A table that grows at its top stands still while it is scrolled, and any table while
 * text in it is selected or a row has the focus.
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
  /** Columns of rank 1 are left out below 560 pixels, of rank 2 below 1,000, of rank 3 below 1,400; `narrow` ones are there below 560 only. */
  readonly rank?: 0 | 1 | 2 | 3 | 'narrow';
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
  /** Height of the visible part in pixels; a table with less rows is as high as they are. */
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
  const { rowHeight = 34, height = 520 } = props;
  const scrolled = useSignal(0);
  const sorting = useSignal<Sorting | null>(null);
  const frame = useRef<HTMLDivElement>(null);
  const sorted = sortedIds(props, sorting.value);
  const still = useStill(sorted, props.growsOnTop === true && sorting.value === null, frame, scrolled);
  const { ids } = still;
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
function sortedIds<Row>({ columns, row, ids }: TableProps<Row>, sorting: Sorting | null): readonly string[] {
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

/** The order of a table, kept as it was while text in the table is selected or a row has the focus; one that grows at its top also while it is scrolled. */
function useStill(
  ids: readonly string[],
  growsOnTop: boolean,
  frame: { readonly current: HTMLDivElement | null },
  scrolled: { readonly value: number },
): { readonly ids: readonly string[]; readonly newer: number; readonly resume: () => void } {
  const isRead = useSignal(false);
  const held = useRef<readonly string[] | null>(null);
  useEffect(() => {
    const read = (): void => {
      const selection = getSelection();
      const body = frame.current?.querySelector('tbody');
      const has = (node: Node | null): boolean => body?.contains(node) === true;
      isRead.value = (selection?.isCollapsed === false && has(selection.anchorNode)) || has(document.activeElement);
    };
    const events = ['selectionchange', 'focusin', 'focusout'];
    for (const name of events) document.addEventListener(name, read);
    return () => {
      for (const name of events) document.removeEventListener(name, read);
    };
  }, []);
  const isAtTop = useComputed(() => scrolled.value <= 0);
  if (isRead.value || (growsOnTop && !isAtTop.value)) held.current ??= ids;
  else held.current = null;
  const shown = held.current ?? ids;
  const top = shown[0];
  return {
    ids: shown,
    newer: growsOnTop && top !== undefined ? Math.max(0, ids.indexOf(top)) : 0,
    resume: () => {
      getSelection()?.removeAllRanges();
      frame.current?.scrollTo({ top: 0 });
      held.current = null;
      isRead.value = false;
    },
  };
}
