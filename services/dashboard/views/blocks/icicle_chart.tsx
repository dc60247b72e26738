/**
 * Rectangles of the icicle, one element each. The chart is one stop of the Tab key: arrows move between runs, Enter zooms in, Backspace and
 * Escape zoom out.
 */
import type { VNode } from 'preact';
import type { BlocksBody } from '../../../../shared/protocol/router_api.ts';
import { count, plural } from '../../format.ts';
import { neighbour, type Direction, type Icicle, type IcicleCell } from '../../model/icicle.ts';
import { colourOf, type ColourMode } from './block_colours.tsx';

const ROW_PIXELS = 30;
const DIRECTIONS: Readonly<Record<string, Direction>> = {
  ArrowUp: 'up',
  ArrowDown: 'down',
  ArrowLeft: 'left',
  ArrowRight: 'right',
};

/** Properties of the chart. */
export interface IcicleChartProps {
  readonly body: BlocksBody;
  readonly icicle: Icicle;
  /** Width in pixels. */
  readonly width: number;
  readonly mode: ColourMode;
  readonly selected: IcicleCell | undefined;
  readonly onSelect: (cell: IcicleCell) => void;
  readonly onZoom: (cell: IcicleCell) => void;
  readonly onBack: () => void;
}

const idOf = ({ run }: IcicleCell): string => `run-${run?.key ?? 'all'}`;

/** The chart. */
export function IcicleChart(props: IcicleChartProps): VNode {
  const { icicle, selected } = props;
  const onKeyDown = (event: KeyboardEvent): void => {
    const direction = DIRECTIONS[event.key];
    if (direction && selected) props.onSelect(neighbour(icicle.cells, selected, direction));
    else if (event.key === 'Enter' && selected) props.onZoom(selected);
    else if (event.key === 'Backspace' || event.key === 'Escape') props.onBack();
    else return;
    event.preventDefault();
  };
  return (
    <div
      class="icicle"
      role="tree"
      aria-label="Tree of cached prefixes. Arrow keys move, Enter zooms in, Backspace zooms out."
      tabIndex={0}
      aria-activedescendant={selected && idOf(selected)}
      style={{ height: `${icicle.rows * ROW_PIXELS}px` }}
      onKeyDown={onKeyDown}
    >
      {icicle.cells.map((cell) => (
        <Cell key={idOf(cell)} cell={cell} chart={props} isSelected={cell === selected} />
      ))}
    </div>
  );
}

function Cell(props: {
  readonly cell: IcicleCell;
  readonly chart: IcicleChartProps;
  readonly isSelected: boolean;
}): VNode {
  const { cell, chart, isSelected } = props;
  const { run, start, end, row } = cell;
  const { body, mode, width } = chart;
  const colour = run ? colourOf(run, body.holders, mode, body.as_of) : { name: 'all', words: '' };
  const words = run
    ? `Blocks ${count(run.depth + 1)} to ${count(run.depth + run.length)} of a prompt; ${plural(cell.blocks, 'block')} begin so; ${colour.words}`
    : `All prompts: ${plural(cell.blocks, 'block')}`;
  const label = labelOf(cell, (end - start) * width);
  return (
    <div
      id={idOf(cell)}
      role="treeitem"
      aria-level={row + 1}
      aria-selected={isSelected}
      aria-label={label === '' ? words : `${label}. ${words}`}
      title={words}
      class={isSelected ? `cell ${colour.name} selected` : `cell ${colour.name}`}
      style={{
        left: `${(start * 100).toFixed(4)}%`,
        width: `${((end - start) * 100).toFixed(4)}%`,
        top: `${row * ROW_PIXELS}px`,
        height: `${ROW_PIXELS - 1}px`,
      }}
      onClick={() => {
        chart.onSelect(cell);
        chart.onZoom(cell);
      }}
    >
      {label}
    </div>
  );
}

/** Text that a rectangle of `pixels` has room for. */
function labelOf({ run, blocks }: IcicleCell, pixels: number): string {
  if (!run) return pixels > 160 ? `All prompts: ${plural(blocks, 'block')}` : 'All';
  if (pixels > 190) return `${plural(run.length, 'block')}, ${count(blocks)} in all · ${run.key.slice(0, 6)}`;
  if (pixels > 84) return plural(run.length, 'block');
  return pixels > 34 ? count(run.length) : '';
}
