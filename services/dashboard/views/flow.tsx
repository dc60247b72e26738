/** The view Flow: between which nodes blocks move, how fast, and what fails. */
import type { VNode } from 'preact';
import { bytesPerSecond, count, plural } from '../format.ts';
import { store } from '../page.ts';
import { AsOf, Card, NodeLink } from '../parts/common.tsx';
import { FlowMatrix } from '../parts/flow_matrix.tsx';
import { busiestFirst, LinkTable } from '../parts/link_table.tsx';
import { linkId } from '../store.ts';

/** The view Flow. */
export function Flow(): VNode {
  return (
    <>
      <Busiest />
      <FlowMatrix />
      <Links />
    </>
  );
}

/** The busiest link, and the sums of all, in words. */
function Busiest(): VNode {
  const links = store.flows.all();
  const busiest = links.reduce<(typeof links)[number] | undefined>(
    (best, link) => (link.bytes_per_s > (best?.bytes_per_s ?? 0) ? link : best),
    undefined,
  );
  const total = links.reduce((sum, link) => sum + link.bytes_per_s, 0);
  const active = links.filter((link) => link.bytes_per_s > 0).length;
  const failures = links.reduce((sum, link) => sum + link.failures, 0);
  return (
    <Card title="The busiest link" wide>
      {busiest ? (
        <p class="lead">
          <NodeLink name={busiest.from} /> → <NodeLink name={busiest.to} /> by {busiest.way}:{' '}
          {bytesPerSecond(busiest.bytes_per_s)}
        </p>
      ) : (
        <p class="lead">Nothing moves now.</p>
      )}
      <p class="soft">
        In the last ten seconds {bytesPerSecond(total)} moved over {count(active)} of {plural(links.length, 'link')}.{' '}
        {failures > 0
          ? `${plural(failures, 'fetch', 'fetches')} failed since the readers started.`
          : 'No fetch has failed.'}
      </p>
    </Card>
  );
}

function Links(): VNode {
  const links = store.flows.all();
  return (
    <Card
      title="Links, the busiest first"
      wide
      note={
        <>
          {plural(links.length, 'link')} · <AsOf />
        </>
      }
    >
      <LinkTable ids={busiestFirst(links, linkId)} empty="No block has moved between nodes yet." />
    </Card>
  );
}
