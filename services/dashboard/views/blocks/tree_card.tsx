/** The tree of cached prefixes as an icicle, with the run that is looked at next to it. */
import { signal, useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect, useMemo, useRef } from 'preact/hooks';
import type { BlockRunView, BlocksBody } from '../../../../shared/protocol/router_api.ts';
import { count, plural } from '../../format.ts';
import { focusOf, layOut, pathTo, type IcicleCell } from '../../model/icicle.ts';
import { AsOf, Card, Notice } from '../../parts/common.tsx';
import { useSteadyJson } from '../../parts/steady_json.ts';
import { goTo, hrefOf } from '../../route.ts';
import { ColourChoice, ColourLegend, colourModeOf } from './block_colours.tsx';
import { IcicleChart } from './icicle_chart.tsx';
import { RunPanel } from './run_panel.tsx';

/** Runs that are asked for at once: as many as there are rectangles at most. */
const MAX_RUNS = 450;
const MAX_ROWS = 12;
/** Narrowest rectangle in pixels. */
const MIN_PIXELS = 3;
const AGAIN_MS = 5_000;
const NOT_READY_MS = 700;

/** Runs that bodies have named since the page was loaded, for the way back to the beginning; bounded. */
const known = new Map<string, BlockRunView>();
const MAX_KNOWN = 20_000;

function remember(body: BlocksBody): void {
  for (const run of body.runs) {
    known.delete(run.key);
    known.set(run.key, run);
  }
  for (const key of known.keys()) {
    if (known.size <= MAX_KNOWN) break;
    known.delete(key);
  }
}

/** Key of the run that the panel shows; null for the one that the tree begins with. */
const selectedKey = signal<string | null>(null);

/** Card of the tree below `focus`, the key of a run; null for all prompts. */
export function TreeCard({ focus }: { readonly focus: string | null }): VNode {
  const root = focus === null ? '' : `root=${encodeURIComponent(focus)}&`;
  const { body, error } = useSteadyJson<BlocksBody>(`api/blocks?${root}limit=${MAX_RUNS}`, (last) =>
    last?.is_ready === true ? AGAIN_MS : NOT_READY_MS,
  );
  useEffect(() => {
    selectedKey.value = null;
  }, [focus]);
  useMemo(() => body && remember(body), [body]);
  return (
    <Card
      wide
      title="Cached prefixes"
      note={
        <>
          {body?.is_ready === true && <>{plural(body.total_blocks, 'block')} · </>}
          <AsOf at={body?.as_of} />
        </>
      }
    >
      {error !== undefined && <Notice error={error}>{''}</Notice>}
      {error !== undefined && focus !== null && (
        <p>
          <a href={hrefOf('blocks')}>Show all prompts</a>
        </p>
      )}
      {error !== undefined && !body ? null : !body?.is_ready ? (
        <Notice>The router gathers the tree, which it keeps only while somebody looks…</Notice>
      ) : body.runs.length === 0 ? (
        <Notice>
          No block is cached yet. Send a prompt that is longer than a block, in the Playground for example.
        </Notice>
      ) : (
        <Tree body={body} focus={focus} />
      )}
    </Card>
  );
}

function Tree({ body, focus }: { readonly body: BlocksBody; readonly focus: string | null }): VNode {
  const frame = useRef<HTMLDivElement>(null);
  const width = useWidth(frame);
  const top = focusOf(body.runs, focus);
  const icicle = useMemo(
    () => layOut(body, focus, { cells: MAX_RUNS, rows: MAX_ROWS, width: MIN_PIXELS / Math.max(width, 1) }),
    [body, focus, width],
  );
  const chosen = selectedKey.value;
  const selected = icicle.cells.find(({ run }) => run?.key === chosen) ?? icicle.cells[0];
  const zoom = (cell: IcicleCell): void => {
    // The first rectangle is what is shown: from there it goes back up.
    if (cell.row > 0 && cell.run) goTo('blocks', cell.run.key);
    else if (top) zoomOut(top);
  };
  return (
    <>
      <div class="tree-line">
        <Path focus={focus} />
        <span class="spring" />
        <ColourChoice body={body} />
      </div>
      {focus !== null && top === null && (
        <Notice>
          This run is not cached any more, or is beyond what the router sends at once; all prompts are shown.
        </Notice>
      )}
      <div class="tree">
        <div ref={frame} class="tree-frame">
          <IcicleChart
            body={body}
            icicle={icicle}
            width={width}
            mode={colourModeOf(body)}
            selected={selected}
            onSelect={(cell) => (selectedKey.value = cell.run?.key ?? null)}
            onZoom={zoom}
            onBack={() => top && zoomOut(top)}
          />
          <ColourLegend body={body} />
          <p class="soft note-text">
            Width: cached blocks that begin with the same prefix. Each row continues the one above; the numbers are
            blocks.
            {icicle.hidden > 0 &&
              ` ${plural(icicle.hidden, 'run')} too narrow or too deep to draw: zoom into the run above, or make the window wider.`}
            {body.is_truncated && ' Blocks are left out: small branches, or those of a holder that did not answer.'}
          </p>
        </div>
        <RunPanel body={body} run={selected?.run ?? null} />
      </div>
    </>
  );
}

function zoomOut(run: BlockRunView): void {
  if (run.parent === null) goTo('blocks');
  else goTo('blocks', run.parent);
}

/** Way from all prompts to the run that the tree begins with, as links. */
function Path({ focus }: { readonly focus: string | null }): VNode {
  const path = focus === null ? [] : pathTo(known, focus);
  const isWhole = path[0] === undefined || path[0].parent === null;
  return (
    <nav class="path" aria-label="Way to the shown run">
      {focus === null ? <b aria-current="location">All prompts</b> : <a href={hrefOf('blocks')}>All prompts</a>}
      {!isWhole && <span class="soft"> › …</span>}
      {path.map((run, i) => (
        <span key={run.key}>
          <span class="soft"> › </span>
          {i === path.length - 1 ? (
            <b aria-current="location">{runName(run)}</b>
          ) : (
            <a href={hrefOf('blocks', run.key)}>{runName(run)}</a>
          )}
        </span>
      ))}
    </nav>
  );
}

/** Short name of a run: where it lies in its prompt, and the beginning of its key. */
function runName({ depth, length, key }: BlockRunView): string {
  return `blocks ${count(depth + 1)}–${count(depth + length)} (${key.slice(0, 6)})`;
}

/** Width in pixels of an element that is there from the first drawing on. */
function useWidth(element: { readonly current: HTMLElement | null }): number {
  const width = useSignal(1_000);
  useEffect(() => {
    const { current } = element;
    if (!current) return undefined;
    const observer = new ResizeObserver(() => (width.value = current.clientWidth));
    width.value = current.clientWidth;
    observer.observe(current);
    return () => observer.disconnect();
  }, []);
  return width.value;
}
