/** Contents of each kind of tier now, over one node or several. */
import type { VNode } from 'preact';
import type { NodeView } from '../../../shared/protocol/router_api.ts';
import { bytes, count, percent, plural } from '../format.ts';
import { tierSums, tierWord } from '../pool_words.ts';
import { Meter, Notice } from './common.tsx';

/** Table of the tiers of these nodes, one row for each kind. */
export function TierTable({ nodes }: { readonly nodes: readonly NodeView[] }): VNode {
  const sums = tierSums(nodes);
  if (sums.length === 0) return <Notice>No blocks are kept here.</Notice>;
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Tier</th>
          <th scope="col">Fill</th>
          <th scope="col" class="number">
            Held
          </th>
          <th scope="col" class="number rank-1">
            Blocks
          </th>
          <th
            scope="col"
            class="number"
            title="Share of the blocks asked of this tier that it had, since the nodes started. Other tiers are asked only for blocks that the prefix index has there, so theirs is near 100 %; the hit rate of prompts is in Overview"
          >
            Found
          </th>
          <th scope="col" class="number rank-1" title="Blocks that were removed to make room, since the nodes started">
            Evicted
          </th>
        </tr>
      </thead>
      <tbody>
        {sums.map((sum) => (
          <tr key={sum.name}>
            <td title={`on ${plural(sum.nodes, 'node')}`}>{tierWord(sum.name)}</td>
            <td>
              <Meter share={sum.bytes / sum.capacity} label={`${bytes(sum.bytes)} of ${bytes(sum.capacity)}`} />
            </td>
            <td class="number">{bytes(sum.bytes)}</td>
            <td class="number rank-1">{count(sum.blocks)}</td>
            <td class="number">{percent(sum.hits / (sum.hits + sum.misses))}</td>
            <td class="number rank-1">{count(sum.evictions)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
