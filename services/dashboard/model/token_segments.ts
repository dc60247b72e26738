/**
 * Tokens of a prompt in segments of one colour: by the nodes that hold them (a prompt that was looked up), or by where their KV came from (a
 * request that ran).
 */
import type { LookupBody, Miss, TokenSources } from '../../../shared/protocol/router_api.ts';
import { tierText } from './miss_sentences.ts';

/** Neighbouring tokens [start, end) with one label. */
export interface TokenSegment {
  readonly start: number;
  readonly end: number;
  readonly label: string;
  /** Index of the colour in the legend. */
  readonly colour: number;
}

/** Entry of a legend: a label, its colour, and its tokens in all. */
export interface LegendEntry {
  readonly label: string;
  readonly colour: number;
  readonly tokens: number;
}

/** Segments of a prompt, ascending and without gaps, and their legend. */
export interface TokenColours {
  readonly segments: readonly TokenSegment[];
  readonly legend: readonly LegendEntry[];
}

/** Colour of tokens that nobody holds, and of computed ones. */
export const PLAIN = 0;
/** Colours besides {@link PLAIN}; further sets of holders share the last one. */
const NUM_COLOURS = 8;

const NOT_HELD = 'not held';
const OTHERS = 'other holders';

type Holders = LookupBody['ranges'][number]['held_by'];

/** Returns "decode-1 (device, host memory), store-1 (disk)". */
function holdersText(holders: Holders): string {
  if (holders.length === 0) return NOT_HELD;
  return holders
    .map(({ node, tiers }) => (tiers.length > 0 ? `${node} (${tiers.map(tierText).join(', ')})` : node))
    .join(', ');
}

/** Returns the segments of a prompt that was looked up, by the nodes that hold them. */
export function holderSegments({ prompt_tokens: total, ranges }: LookupBody): TokenColours {
  const colours = new Map<string, number>();
  const colourOf = (label: string): number => {
    if (label === NOT_HELD) return PLAIN;
    const known = colours.get(label) ?? Math.min(NUM_COLOURS, colours.size + 1);
    colours.set(label, known);
    return known;
  };
  const segments: TokenSegment[] = [];
  const add = (start: number, end: number, label: string): void => {
    if (end <= start) return;
    const last = segments.at(-1);
    if (last?.label === label && last.end === start) segments[segments.length - 1] = { ...last, end };
    else segments.push({ start, end, label, colour: colourOf(label) });
  };
  let at = 0;
  for (const { start, end, held_by: holders } of ranges) {
    add(at, Math.min(start, total), NOT_HELD);
    add(Math.max(at, start), Math.min(end, total), holdersText(holders));
    at = Math.max(at, Math.min(end, total));
  }
  add(at, total, NOT_HELD);
  return { segments, legend: legendOf(segments) };
}

/** Labels and colours of sources, in the order in which a prompt's hits lie: what is nearest comes first. */
const SOURCE_LABELS: Readonly<Record<keyof TokenSources, { readonly label: string; readonly colour: number }>> = {
  device: { label: 'cached on the device', colour: 1 },
  dram: { label: 'cached in host memory', colour: 2 },
  instance: { label: 'fetched from another instance', colour: 3 },
  store_dram: { label: "fetched from a store's memory", colour: 4 },
  store_disk: { label: "fetched from a store's disk", colour: 5 },
  handoff: { label: 'computed for it elsewhere, then fetched', colour: 6 },
  computed: { label: 'computed where it generates', colour: PLAIN },
};

/** Names of the sources in the order of {@link SOURCE_LABELS}. */
const SOURCES = Object.keys(SOURCE_LABELS) as readonly (keyof TokenSources)[];

/** Returns the number of tokens over all sources. */
export function totalOf(sources: TokenSources): number {
  return SOURCES.reduce((total, source) => total + sources[source], 0);
}

/**
 * Returns the segments of a prompt that ran, by where its KV came from. `misses` say which tokens were computed; only the number of tokens
 * of each source is known besides that, so sources follow each other in the order of {@link SOURCES}.
 */
export function sourceSegments(sources: TokenSources, misses: readonly Miss[]): TokenColours {
  const total = totalOf(sources);
  const isComputed = coverageOf(misses, total, sources.handoff + sources.computed);
  const left: { -readonly [Source in keyof TokenSources]: number } = { ...sources };
  const segments: TokenSegment[] = [];
  const take = (start: number, end: number, from: readonly (keyof TokenSources)[]): void => {
    let at = start;
    for (const source of from) {
      const count = Math.min(left[source], end - at);
      if (count <= 0) continue;
      left[source] -= count;
      segments.push({ start: at, end: at + count, ...SOURCE_LABELS[source] });
      at += count;
    }
  };
  const reused = SOURCES.filter((source) => source !== 'handoff' && source !== 'computed');
  let at = 0;
  for (const [start, end] of isComputed) {
    take(at, start, reused);
    take(start, end, ['handoff', 'computed']);
    at = end;
  }
  take(at, total, reused);
  return { segments: joined(segments), legend: legendOf(segments) };
}

/** Returns the ranges of computed tokens; the last `computed` tokens where the misses do not add up to these. */
function coverageOf(misses: readonly Miss[], total: number, computed: number): readonly (readonly [number, number])[] {
  const ranges: [number, number][] = [];
  for (const { start, end } of [...misses].sort((a, b) => a.start - b.start)) {
    const last = ranges.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else ranges.push([start, end]);
  }
  const covered = ranges.reduce((sum, [start, end]) => sum + end - start, 0);
  const isExact = covered === computed && (ranges.at(-1)?.[1] ?? 0) <= total;
  return isExact ? ranges : [[total - computed, total]];
}

function joined(segments: readonly TokenSegment[]): TokenSegment[] {
  const out: TokenSegment[] = [];
  for (const segment of segments) {
    const last = out.at(-1);
    if (last?.label === segment.label && last.end === segment.start)
      out[out.length - 1] = { ...last, end: segment.end };
    else out.push(segment);
  }
  return out;
}

function legendOf(segments: readonly TokenSegment[]): LegendEntry[] {
  const entries = new Map<string, LegendEntry>();
  for (const { start, end, label, colour } of segments) {
    // Sets of holders beyond the colours are one entry, since nobody can tell them apart.
    const name = colour === NUM_COLOURS ? OTHERS : label;
    const tokens = (entries.get(name)?.tokens ?? 0) + end - start;
    entries.set(name, { label: name, colour, tokens });
  }
  return [...entries.values()];
}

/** Text of a segment, for a prompt with texts of its tokens. */
export interface SegmentText {
  readonly segment: TokenSegment;
  /** Texts of single tokens where the prompt is short, else one text. */
  readonly texts: readonly string[];
  /** Tokens of the segment whose text is left out. */
  readonly hidden: number;
}

/** Longest prompt whose tokens are shown one by one. */
const MAX_SINGLE = 400;
/** Tokens shown of the beginning and of the end of a long segment. */
const MAX_SHOWN = 300;

/** Returns the text of each segment, with the middle of long ones left out. */
export function segmentTexts(segments: readonly TokenSegment[], texts: readonly string[]): SegmentText[] {
  const isSingle = texts.length <= MAX_SINGLE;
  return segments.map((segment) => {
    const { start, end } = segment;
    const all = texts.slice(start, end);
    if (isSingle) return { segment, texts: all, hidden: 0 };
    if (all.length <= 2 * MAX_SHOWN) return { segment, texts: [all.join('')], hidden: 0 };
    const shown = [all.slice(0, MAX_SHOWN).join(''), all.slice(-MAX_SHOWN).join('')];
    return { segment, texts: shown, hidden: all.length - 2 * MAX_SHOWN };
  });
}
