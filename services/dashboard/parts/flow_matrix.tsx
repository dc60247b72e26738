/** Rates between the busiest nodes, as a table whose cells are the darker the more moves. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { matrixOf } from '../flow_sums.ts';
import { bytesPerSecond } from '../format.ts';
import { store } from '../page.ts';
import { Card, NodeLink } from './common.tsx';

/** Pixels of a column with its padding, and of the column of names. */
const CELL_PX = 80;
const NAMES_PX = 90;
const MOST = 14;

/** The card. It has as many nodes as fit into its width. */
export function FlowMatrix(): VNode | null {
  const box = useRef<HTMLDivElement>(null);
  const fits = useSignal(3);
  useEffect(() => {
    if (!box.current) return undefined;
    const observer = new ResizeObserver(([entry]) => {
      const width = entry?.contentRect.width ?? 0;
      fits.value = Math.max(2, Math.min(MOST, Math.floor((width - NAMES_PX) / CELL_PX)));
    });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const matrix = matrixOf(store.flows.all(), MOST, fits.value);
  return (
    <Card title="Who sends to whom now" wide>
      <div ref={box}>
        {matrix.from.length === 0 ? (
          <p class="notice">No block has moved between nodes yet.</p>
        ) : (
          <table class="matrix">
            <thead>
              <tr>
                <th scope="col">from ↓ to →</th>
                {matrix.to.map((to) => (
                  <th key={to} scope="col">
                    <NodeLink name={to} />
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {matrix.from.map((from) => (
                <tr key={from}>
                  <th scope="row">
                    <NodeLink name={from} />
                  </th>
                  {matrix.to.map((to) => (
                    <Cell key={to} value={matrix.at(from, to)} largest={matrix.largest} label={`${from} → ${to}`} />
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </div>
      <p class="soft small">
        Bytes a second of the last ten seconds, over all ways.
        {matrix.isPart && ' The busiest nodes only; the table below has all links.'}
      </p>
    </Card>
  );
}

function Cell(props: { readonly value: number; readonly largest: number; readonly label: string }): VNode {
  const { value, largest, label } = props;
  // In steps of a tenth: the colour says about how much, the text how much.
  const step = value <= 0 ? 0 : Math.max(1, Math.round((10 * value) / largest));
  return (
    <td class={`heat heat-${step}`} title={`${label}: ${bytesPerSecond(value)}`}>
      {value > 0 ? bytesPerSecond(value) : ''}
    </td>
  );
}
