/** Waterfall of one request: a row for each process, a bar for each thing that it did. */
import { useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { duration } from '../../format.ts';
import { axisMarks, waterfallOf, type Span, type SpanKind, type Track, type Waterfall } from '../../model/waterfall.ts';
import { AsOf, Card } from '../../parts/common.tsx';
import type { RequestCard } from './request_card.ts';
import { SPAN_WORDS } from '../../parts/ttft_parts.tsx';

/** Waterfall of a request as a card. */
export function WaterfallCard({ request, at }: RequestCard): VNode {
  const all = waterfallOf(request);
  const { firstTokenMs, endMs } = all;
  // Most questions are about the time to the first token, which a long answer makes too narrow to see.
  const isShort = useSignal(firstTokenMs !== null && firstTokenMs < endMs / 4);
  const shownMs = isShort.value && firstTokenMs !== null ? firstTokenMs * 1.15 : endMs;
  return (
    <Card
      wide
      title="Time over processes"
      note={
        <span class="choice-line">
          {firstTokenMs !== null && (
            <>
              <button type="button" aria-pressed={isShort.value} onClick={() => (isShort.value = true)}>
                To the first token
              </button>
              <button type="button" aria-pressed={!isShort.value} onClick={() => (isShort.value = false)}>
                Whole request
              </button>
            </>
          )}
          <AsOf at={at} />
        </span>
      }
    >
      <Chart waterfall={all} shownMs={shownMs} />
      <Kinds waterfall={all} />
      <SpanTable waterfall={all} />
    </Card>
  );
}

function Chart({ waterfall, shownMs }: { readonly waterfall: Waterfall; readonly shownMs: number }): VNode {
  const { tracks, firstTokenMs, notes } = waterfall;
  const at = (ms: number): string => `${(Math.min(1, ms / Math.max(shownMs, 1e-9)) * 100).toFixed(3)}%`;
  const marks = axisMarks(shownMs, 5);
  const shownNotes = notes.filter(({ atMs }) => atMs !== null && atMs <= shownMs);
  return (
    <div class="waterfall" aria-hidden="true">
      {tracks.map((track, i) => (
        <div key={i} class="track">
          <div class="track-name">
            <b>{track.process}</b>{' '}
            <span class="soft">
              {trackRole(
                track,
                tracks.some(({ attempt }) => attempt > 1),
              )}
            </span>
          </div>
          <div class="track-line">
            {marks.map((ms) => (
              <i key={ms} class="grid" style={{ left: at(ms) }} />
            ))}
            {track.spans
              .filter(({ startMs }) => startMs < shownMs)
              .map((span) => (
                <SpanBar key={span.kind} span={span} at={at} shownMs={shownMs} />
              ))}
            {firstTokenMs !== null && firstTokenMs <= shownMs && <i class="first" style={{ left: at(firstTokenMs) }} />}
            {track.attempt === 0 &&
              shownNotes.map(({ atMs, text }, n) => (
                <i key={`note ${n}`} class="note-mark" style={{ left: at(atMs ?? 0) }} title={text} />
              ))}
          </div>
        </div>
      ))}
      <div class="track axis">
        <div class="track-name" />
        <div class="track-line">
          {marks.map((ms) => (
            <span key={ms} class={ms > shownMs * 0.86 ? 'mark-end' : ''} style={{ left: at(ms) }}>
              {duration(ms)}
            </span>
          ))}
        </div>
      </div>
    </div>
  );
}

function trackRole({ role, attempt }: Track, isRetried: boolean): string {
  if (role === 'router') return '';
  // The part that the process had here: an instance of either role can do both.
  const part = role === 'prefill' ? 'prompt' : 'answer';
  return isRetried ? `${part}, try ${attempt}` : part;
}

function SpanBar(props: { readonly span: Span; readonly at: (ms: number) => string; readonly shownMs: number }): VNode {
  const { span, at, shownMs } = props;
  const { kind, startMs, endMs } = span;
  const share = (Math.min(endMs, shownMs) - startMs) / Math.max(shownMs, 1e-9);
  const text = `${SPAN_WORDS[kind].label} ${duration(endMs - startMs)}`;
  return (
    <span class={`span t-${kind}`} style={{ left: at(startMs), width: `${(share * 100).toFixed(3)}%` }} title={text}>
      {share > 0.1 ? text : ''}
    </span>
  );
}

function Kinds({ waterfall }: { readonly waterfall: Waterfall }): VNode {
  const kinds = new Set(waterfall.tracks.flatMap(({ spans }) => spans.map(({ kind }) => kind)));
  return (
    <ul class="key">
      {(Object.keys(SPAN_WORDS) as SpanKind[])
        .filter((kind) => kinds.has(kind))
        .map((kind) => (
          <li key={kind} title={SPAN_WORDS[kind].title}>
            <span class={`letter-box span-colour t-${kind}`} aria-hidden="true" />
            <span>{SPAN_WORDS[kind].label}</span>
          </li>
        ))}
    </ul>
  );
}

function SpanTable({ waterfall }: { readonly waterfall: Waterfall }): VNode {
  const rows = waterfall.tracks.flatMap((track) => track.spans.map((span) => ({ track, span })));
  return (
    <details>
      <summary>The same as a table, with what each part means</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="Parts of the request's time">
        <table class="grid-table">
          <thead>
            <tr>
              <th scope="col">Process</th>
              <th scope="col">Part</th>
              <th scope="col" class="number">
                From
              </th>
              <th scope="col" class="number">
                Takes
              </th>
              <th scope="col">Meaning</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ track, span }, i) => (
              <tr key={i}>
                <th scope="row">{track.process}</th>
                <td>{SPAN_WORDS[span.kind].label}</td>
                <td class="number">{duration(span.startMs)}</td>
                <td class="number">{duration(span.endMs - span.startMs)}</td>
                <td class="wide">{SPAN_WORDS[span.kind].title}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="soft note-text">
        Each process measures with its own clock; bars are durations laid end to end from the arrival at the router.
      </p>
    </details>
  );
}
