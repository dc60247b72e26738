/** Rows of the list of requests: pages of the router's log that pass the filter, and the rows that the stream brings since. */
import { effect, signal, untracked, type ReadonlySignal } from '@preact/signals';
import type { RequestPage, RequestRow } from '../../../../shared/protocol/router_api.ts';
import { askJson } from '../../browser.ts';
import { KeyedRows } from '../../keyed_rows.ts';
import { messageOf } from '../../messages.ts';
import { passes, queryOf, type RequestFilter } from '../../model/request_filter.ts';
import { store } from '../../page.ts';

/** Rows that a list keeps at most. */
const MAX_ROWS = 10_000;
/** Rows of a page. */
export const PAGE_ROWS = 200;

/** Progress of a list. */
export interface ListState {
  readonly isLoading: boolean;
  readonly error: string | undefined;
  /** Time of the newest page, on the router's clock. */
  readonly asOf: number | undefined;
  /** Requests that the router keeps, those that do not pass the filter included. */
  readonly kept: number | undefined;
  /** Cursor of the next page; null after the last one. */
  readonly next: string | null;
}

const BEGIN: ListState = { isLoading: true, error: undefined, asOf: undefined, kept: undefined, next: null };

/** Rows of one filter, newest or slowest first. */
export class RequestRows {
  readonly rows = new KeyedRows<RequestRow>(({ id }) => id, MAX_ROWS);
  readonly #filter: RequestFilter;
  readonly #state = signal<ListState>(BEGIN);
  readonly #aborter = new AbortController();
  readonly #unfollow: () => void;

  constructor(filter: RequestFilter) {
    this.#filter = filter;
    void this.loadMore();
    this.#unfollow = effect(() => {
      // Read here, so that this runs again after each change.
      if (store.requests.changes.value > 0) untracked(() => this.#follow());
    });
  }

  /** Progress of the list. */
  get state(): ReadonlySignal<ListState> {
    return this.#state;
  }

  /** Asks for the first page, or for the one after the last row. */
  async loadMore(): Promise<void> {
    this.#state.value = { ...this.#state.peek(), isLoading: true, error: undefined };
    try {
      const path = queryOf(this.#filter, PAGE_ROWS, this.#state.peek().next);
      const page = await askJson<RequestPage>(path, { signal: this.#aborter.signal });
      this.rows.put(page.requests, 'last');
      this.#state.value = { isLoading: false, error: undefined, asOf: page.as_of, kept: page.kept, next: page.next };
      this.#follow();
    } catch (error) {
      if (this.#aborter.signal.aborted) return;
      this.#state.value = { ...this.#state.peek(), isLoading: false, error: messageOf(error) };
    }
  }

  /** Ends the list: nothing changes it any more. */
  close(): void {
    this.#aborter.abort();
    this.#unfollow();
  }

  /** Takes over what the stream brought: rows that are listed, and newer ones that pass the filter. */
  #follow(): void {
    if (this.#state.peek().asOf === undefined) return;
    const isNewest = this.#filter.order === 'newest';
    const top = this.rows.ids.peek()[0];
    const newestAt = (top === undefined ? undefined : this.rows.row(top)?.peek().started_at) ?? -Infinity;
    const changed: RequestRow[] = [];
    const added: RequestRow[] = [];
    for (const id of store.requests.ids.peek()) {
      const row = store.requests.row(id)?.peek();
      if (row === undefined) continue;
      const listed = this.rows.row(id);
      if (listed) {
        if (listed.peek() !== row) changed.push(row);
      } else if (isNewest && row.started_at >= newestAt && passes(this.#filter, row)) added.push(row);
    }
    this.rows.put(changed, 'last');
    this.rows.put(added, 'first');
  }
}
