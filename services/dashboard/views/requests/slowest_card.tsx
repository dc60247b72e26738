/** The slowest requests of the last hour, for the overview. */
import type { VNode } from 'preact';
import type { RequestPage, RequestRow } from '../../../../shared/protocol/router_api.ts';
import { clockTime, duration, NONE } from '../../format.ts';
import { NO_FILTER, queryOf } from '../../model/request_filter.ts';
import { AsOf, Card, Notice } from '../../parts/common.tsx';
import { useJson } from '../../parts/use_json.ts';
import { hrefOf } from '../../route.ts';
import { mainReason } from './request_list.tsx';

/** Requests that the card has. */
const LISTED = 5;
const EVERY_MS = 5_000;

/** Card of the slowest requests; each leads to its page, which says where the time went and why the request ran there. */
export function SlowestCard(): VNode {
  const { body, error } = useJson<RequestPage>(queryOf({ ...NO_FILTER, order: 'slowest' }, LISTED, null), EVERY_MS);
  return (
    <Card title="Slowest requests" note={<AsOf at={body?.as_of} />} wide>
      {!body || body.requests.length === 0 ? (
        <Notice error={error}>{body ? 'No request has come yet.' : 'Asking the router…'}</Notice>
      ) : (
        <>
          <SlowestTable rows={body.requests} />
          <p class="soft small">
            By the time to the first token, of the requests that are kept. Choose one to see where its time went, and
            why it ran there.
          </p>
        </>
      )}
    </Card>
  );
}

function SlowestTable({ rows }: { readonly rows: readonly RequestRow[] }): VNode {
  return (
    <table aria-label="Slowest requests">
      <thead>
        <tr>
          <th scope="col">Request</th>
          <th scope="col" class="rank-1">
            Started
          </th>
          <th scope="col" class="number">
            First token
          </th>
          <th scope="col" class="number">
            Total
          </th>
          <th scope="col" class="rank-1">
            Ran on
          </th>
          <th
            scope="col"
            class="rank-2"
            title="Error of a request that failed; of others the reason of most computed tokens"
          >
            Failed or computed because
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={row.id}>
            <td>
              <a href={hrefOf('requests', row.id)}>
                <span class="id">{row.id}</span>
              </a>
            </td>
            <td class="rank-1">{clockTime(row.started_at)}</td>
            <td class="number">{duration(row.ttft_ms)}</td>
            <td class="number">{duration(row.total_ms)}</td>
            <td class="rank-1">
              {row.prefill === null ? (row.decode ?? NONE) : `${row.prefill} → ${row.decode ?? NONE}`}
            </td>
            <td class="rank-2">{row.error ?? mainReason(row)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
