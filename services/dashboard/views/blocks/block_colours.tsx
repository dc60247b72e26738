/** Colours of the runs: when they were last used, how many nodes hold them, or in which tier of one node they are. */
import { signal } from '@preact/signals';
import type { VNode } from 'preact';
import type { BlockRunView, BlocksBody } from '../../../../shared/protocol/router_api.ts';
import { tierText } from '../../model/miss_sentences.ts';
import { USE_CLASSES, useClassOf } from '../../model/icicle.ts';

/** Meaning of the colours: last use, number of holders, or the tiers of the node with this index in `holders`. */
export type ColourMode = 'use' | 'copies' | `node ${string}`;

/** Colours that somebody chose; they stay while other views are shown. */
const chosenMode = signal<ColourMode | null>(null);

/** Returns the colours in use. Unless chosen otherwise: the last use, or the holders where no last use is known. */
export function colourModeOf({ runs }: BlocksBody): ColourMode {
  return chosenMode.value ?? (runs.some(({ used_at: at }) => at !== null) ? 'use' : 'copies');
}

const MAX_HOLDERS = 100;
const COPY_LABELS = ['1 node', '2 nodes', '3 nodes', '4 or more nodes'];
const TIERS = ['device', 'dram', 'disk'];

/** Class of a run's colour, and what the colour says in words. */
export interface RunColour {
  readonly name: string;
  readonly words: string;
}

/** Returns the colour of a run at `nowMs`, a time of day on the router's clock. */
export function colourOf(run: BlockRunView, holders: readonly string[], mode: ColourMode, nowMs: number): RunColour {
  if (mode === 'use') {
    const at = useClassOf(run.used_at, nowMs);
    return at === undefined
      ? { name: 'none', words: 'not used since somebody began to look at the tree' }
      : { name: `ramp-${at}`, words: `used: ${USE_CLASSES[at]?.label ?? ''}` };
  }
  if (mode === 'copies') {
    const at = Math.min(run.held_by.length, COPY_LABELS.length) - 1;
    return at < 0
      ? { name: 'none', words: 'no holder' }
      : { name: `ramp-${3 - at}`, words: `on ${COPY_LABELS[at] ?? ''}` };
  }
  const node = mode.slice('node '.length);
  const [, tiers] = run.held_by.find(([index]) => holders[index] === node) ?? [];
  const tier = TIERS.find((name) => tiers?.includes(name)) ?? tiers?.[0];
  if (tier === undefined) return { name: 'none', words: `not on ${node}` };
  return { name: `tier-${Math.max(0, TIERS.indexOf(tier))}`, words: `${tierText(tier)} of ${node}` };
}

/** Choice of what the colours mean. */
export function ColourChoice({ body }: { readonly body: BlocksBody }): VNode {
  const mode = colourModeOf(body);
  const largest = largestHolders(body);
  const nodes = mode.startsWith('node ') && !largest.includes(mode.slice(5)) ? [mode.slice(5), ...largest] : largest;
  return (
    <label class="inline">
      <span>Colour by</span>
      <select value={mode} onChange={(event) => (chosenMode.value = event.currentTarget.value as ColourMode)}>
        <option value="use">last use</option>
        <option value="copies">number of holders</option>
        <optgroup label="one holder">
          {nodes.map((node) => (
            <option key={node} value={`node ${node}`}>
              {node}
            </option>
          ))}
        </optgroup>
      </select>
    </label>
  );
}

/** Names of the holders of most blocks, as many as a list can show. */
function largestHolders({ holders, runs }: BlocksBody): readonly string[] {
  if (holders.length <= MAX_HOLDERS) return holders;
  const blocks = new Map<number, number>();
  for (const { held_by: heldBy, length } of runs)
    for (const [index] of heldBy) blocks.set(index, (blocks.get(index) ?? 0) + length);
  const largest = [...blocks].sort((a, b) => b[1] - a[1]).slice(0, MAX_HOLDERS);
  return largest.flatMap(([index]) => holders[index] ?? []);
}

/** Legend of the colours. */
export function ColourLegend({ body }: { readonly body: BlocksBody }): VNode {
  return (
    <ul class="key">
      {legendOf(colourModeOf(body), body.holders).map(({ name, words }) => (
        <li key={name}>
          <span class={`letter-box cell ${name}`} aria-hidden="true" />
          <span>{words}</span>
        </li>
      ))}
    </ul>
  );
}

function legendOf(mode: ColourMode, holders: readonly string[]): RunColour[] {
  if (mode === 'use') {
    const ages = USE_CLASSES.map(({ label }, i) => ({ name: `ramp-${i}`, words: label }));
    return [...ages, { name: 'none', words: 'not used since somebody began to look' }];
  }
  if (mode === 'copies') return COPY_LABELS.map((words, i) => ({ name: `ramp-${3 - i}`, words }));
  const node = mode.slice('node '.length);
  const tiers = TIERS.map((tier, i) => ({ name: `tier-${i}`, words: tierText(tier) }));
  return [...tiers, { name: 'none', words: holders.includes(node) ? `not on ${node}` : `${node} holds nothing` }];
}
