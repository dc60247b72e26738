/** Tokens of a prompt in colours, with a legend. Each segment also has the letter of its entry in the legend. */
import type { VNode } from 'preact';
import { count, percent, plural } from '../format.ts';
import {
  PLAIN,
  segmentTexts,
  type LegendEntry,
  type TokenColours,
  type TokenSegment,
} from '../model/token_segments.ts';

/** Letter of a colour, for those who cannot tell colours apart. */
function letterOf(colour: number): string {
  return colour === PLAIN ? '·' : String.fromCharCode(64 + colour);
}

/** Colour of an entry with its letter. */
export function Swatch({ colour }: { readonly colour: number }): VNode {
  return (
    <span class={`letter-box c${colour}`} aria-hidden="true">
      {letterOf(colour)}
    </span>
  );
}

/** Legend of colours with the number of tokens of each. */
export function TokenLegend({ legend }: { readonly legend: readonly LegendEntry[] }): VNode {
  const total = legend.reduce((sum, { tokens }) => sum + tokens, 0);
  return (
    <ul class="key">
      {legend.map(({ label, colour, tokens }) => (
        <li key={label}>
          <Swatch colour={colour} />
          <span>{label}</span>
          <b>{plural(tokens, 'token')}</b>
          <span class="soft">{percent(tokens / total)}</span>
        </li>
      ))}
    </ul>
  );
}

/** Bar of the segments, each as wide as its tokens. */
export function TokenBar({ segments }: { readonly segments: readonly TokenSegment[] }): VNode {
  const total = segments.at(-1)?.end ?? 0;
  return (
    <div class="token-bar" aria-hidden="true">
      {segments.map(({ start, end, label, colour }) => (
        <span
          key={start}
          class={`c${colour}`}
          style={{ width: `${((end - start) / total) * 100}%` }}
          title={`${label}: tokens ${count(start)} to ${count(end)}`}
        />
      ))}
    </div>
  );
}

/** Text of a prompt, token by token where it is short. */
export function TokenText(props: { readonly colours: TokenColours; readonly texts: readonly string[] }): VNode {
  return (
    <div class="token-text" role="region" aria-label="Text of the prompt" tabIndex={0}>
      {segmentTexts(props.colours.segments, props.texts).map(({ segment, texts, hidden }) => (
        <span key={segment.start} class={`segment c${segment.colour}`} title={segment.label}>
          <span class="letter" aria-hidden="true">
            {letterOf(segment.colour)}
          </span>
          <span class="hidden">{`${segment.label}: `}</span>
          {texts.map((text, i) => (
            <span key={i} class="token">
              {i === 1 && hidden > 0 ? <em>{` … ${plural(hidden, 'token')} left out … `}</em> : null}
              {text}
            </span>
          ))}
        </span>
      ))}
    </div>
  );
}
