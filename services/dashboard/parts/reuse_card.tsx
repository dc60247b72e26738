/** The reuse curve: how many blocks would be found in a pool of a given size. */
import type { VNode } from 'preact';
import type { ReuseBody } from '../../../shared/protocol/router_api.ts';
import { bytes, percent, plural } from '../format.ts';
import { reuseSentences, tierWord } from '../pool_words.ts';
import { Chart } from './chart.tsx';
import { AsOf, Card, Notice } from './common.tsx';
import { useJson } from './use_json.ts';

/** Milliseconds between two questions: the curve changes slowly. */
const EVERY_MS = 30_000;

/** The card. */
export function ReuseCard(): VNode {
  const { body, error } = useJson<ReuseBody>('api/reuse', EVERY_MS);
  return (
    <Card title="What would more memory bring?" note={<AsOf at={body?.as_of} />}>
      {body ? <Curve body={body} /> : <Notice error={error}>Asking the router for the curve…</Notice>}
    </Card>
  );
}

function Curve({ body }: { readonly body: ReuseBody }): VNode {
  const { curve, tiers } = body;
  const xs = curve.map((point) => point.bytes);
  const marks = Object.entries(tiers)
    .filter(([, { capacity_bytes }]) => capacity_bytes > 0)
    .map(([name, { capacity_bytes }]) => ({
      at: capacity_bytes,
      text: `${tierWord(name)} now: ${bytes(capacity_bytes)}`,
      isBad: false,
    }));
  return (
    <>
      <ul class="sentences">
        {reuseSentences(body).map((sentence) => (
          <li key={sentence}>{sentence}</li>
        ))}
      </ul>
      {curve.length > 1 && (
        <Chart
          label="Share of blocks that would be found, by the size of the pool"
          xs={xs}
          lines={[{ label: 'found', color: 1, values: curve.map((point) => point.hit_ratio) }]}
          from={xs[0] ?? 1}
          to={xs.at(-1) ?? 2}
          marks={marks}
          isBySize
          atLeast={1}
          formatX={bytes}
          formatY={percent}
        />
      )}
      <p class="soft small">
        Estimated from {plural(body.sampled_keys, 'sampled block')} and {plural(body.accesses, 'access', 'accesses')},
        for a pool that removes what was unused for longest. Dashed lines: the tiers as they are.
      </p>
    </>
  );
}
