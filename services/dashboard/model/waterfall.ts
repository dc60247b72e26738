/**
 * Waterfall of one request: what each process did, when, from the request's arrival at the router. All is made of durations that the router
 * and the instances measured each on its own clock, and of the times in the router's notes:
 *
 * | from                 | to                | process  | span                                                    |
 * | -------------------- | ----------------- | -------- | ------------------------------------------------------- |
 * | 0                    | router            | router   | read, tokens, placement                                 |
 * | start of the attempt | its failure       | decode   | lost, for attempts that failed                          |
 * | router + failover    | + queue           | decode   | waits for device blocks                                 |
 * |                      | + load            | decode   | blocks arrive                                           |
 * |                      | + compute         | decode   | computes                                                |
 * |                      | + transport       | router   | time that nobody measured: messages, event loops        |
 * | start of the attempt | its own durations | prefill  | queue, load, compute                                    |
 * | TTFT                 | total             | decode   | generates                                               |
 */
import type {
  AttemptPart,
  PrefillPart,
  RequestDetail,
  TtftBreakdown,
} from '../../../shared/protocol/request_detail.ts';

/** Kind of a span; the page has a colour and a label for each. */
export type SpanKind = 'router' | 'lost' | 'queue' | 'load' | 'compute' | 'transport' | 'decoding' | 'unmeasured';

/** Time in which a process did one thing, in milliseconds since the request arrived. */
export interface Span {
  readonly kind: SpanKind;
  readonly startMs: number;
  readonly endMs: number;
}

/** Row of the waterfall: one process in one attempt. */
export interface Track {
  /** Name of the process. */
  readonly process: string;
  readonly role: 'router' | 'prefill' | 'decode';
  /** Number of the attempt, from 1; 0 for the router. */
  readonly attempt: number;
  readonly outcome: string;
  readonly spans: readonly Span[];
}

/** Note of the router with its time. */
export interface TimedNote {
  /** Milliseconds since the request arrived; null for a note without a time. */
  readonly atMs: number | null;
  readonly text: string;
}

/** All rows, and the length of the time axis. */
export interface Waterfall {
  readonly tracks: readonly Track[];
  readonly endMs: number;
  /** Milliseconds to the first token; null where none came. */
  readonly firstTokenMs: number | null;
  readonly notes: readonly TimedNote[];
}

/** Returns the waterfall of a request, which may still run. */
export function waterfallOf(request: RequestDetail): Waterfall {
  const { ttft_ms: ttftMs, ttft_parts_ms: parts, total_ms: totalMs, attempts } = request;
  const notes = request.notes.map(timedNote);
  const ranges = attemptRanges(request, notes);
  const tracks: Track[] = [
    {
      process: 'router',
      role: 'router',
      attempt: 0,
      outcome: request.phase,
      spans: routerSpans(request, ranges[0]?.startMs ?? totalMs),
    },
  ];
  // The parts of the TTFT are those of the attempt that gave the first token: the first one with a report.
  const giver = parts && ttftMs !== null ? Math.max(0, indexOfFirst(attempts)) : -1;
  for (const [i, attempt] of attempts.entries()) {
    const range = ranges[i] ?? { startMs: 0, endMs: totalMs };
    const at: AttemptPosition = { number: i + 1, range, isGiver: i === giver, isLast: i === attempts.length - 1 };
    for (const prefill of attempt.prefills) tracks.push(prefillTrack(prefill, at, request));
    tracks.push(decodeTrack(attempt, at, request));
  }
  const endMs = Math.max(totalMs, ...tracks.flatMap(({ spans }) => spans.map((span) => span.endMs)));
  return { tracks, endMs, firstTokenMs: ttftMs, notes };
}

/** Returns a note of the router, which begins with its time ("12.3 ms: text"). */
export function timedNote(note: string): TimedNote {
  const [, ms, text] = /^([\d.]+) ms: (.*)$/s.exec(note) ?? [];
  return ms === undefined || text === undefined ? { atMs: null, text: note } : { atMs: Number(ms), text };
}

interface Range {
  readonly startMs: number;
  readonly endMs: number;
}

/** Where an attempt stands: its number from 1, its time, whether it gave the first token, and whether it is the last one. */
interface AttemptPosition {
  readonly number: number;
  readonly range: Range;
  readonly isGiver: boolean;
  readonly isLast: boolean;
}

function indexOfFirst(attempts: readonly AttemptPart[]): number {
  return attempts.findIndex(({ report }) => report !== null);
}

/** Returns the time of each attempt: it ends with the note of its failure, and the next one begins there. */
function attemptRanges(request: RequestDetail, notes: readonly TimedNote[]): Range[] {
  const { attempts, ttft_parts_ms: parts, total_ms: totalMs } = request;
  const routerMs = parts?.router ?? 0;
  const giver = indexOfFirst(attempts);
  let startMs = routerMs;
  let next = 0;
  return attempts.map(({ decode }, i) => {
    if (parts && i === giver) startMs = routerMs + (parts.failover ?? 0);
    const at = notes.findIndex(({ text }, n) => n >= next && text.startsWith(`${decode} failed after `));
    const isLast = i === attempts.length - 1;
    const failedMs = (at < 0 ? undefined : notes[at]?.atMs) ?? undefined;
    if (at >= 0) next = at + 1;
    const endMs = Math.max(startMs, isLast ? totalMs : (failedMs ?? startMs));
    const range = { startMs, endMs };
    startMs = endMs;
    return range;
  });
}

function routerSpans({ ttft_ms: ttftMs, ttft_parts_ms: parts }: RequestDetail, placedMs: number): Span[] {
  const spans: Span[] = [{ kind: 'router', startMs: 0, endMs: placedMs }];
  if (parts && ttftMs !== null) {
    spans.push({ kind: 'transport', startMs: ttftMs - (parts.transport ?? 0), endMs: ttftMs });
  }
  return spans.filter(isVisible);
}

function decodeTrack(
  attempt: AttemptPart,
  { number, range, isGiver, isLast }: AttemptPosition,
  request: RequestDetail,
): Track {
  const row = { process: attempt.decode, role: 'decode', attempt: number, outcome: attempt.outcome } as const;
  const { ttft_ms: ttftMs, ttft_parts_ms: parts } = request;
  const { report } = attempt;
  if (isGiver && parts && ttftMs !== null) {
    const spans = stages(range.startMs, parts.queue ?? 0, parts.load ?? 0, parts.compute ?? 0);
    spans.push({ kind: 'decoding', startMs: ttftMs, endMs: Math.max(ttftMs, range.endMs) });
    return { ...row, spans: spans.filter(isVisible) };
  }
  if (!report)
    return { ...row, spans: [{ kind: isLast ? 'unmeasured' : 'lost', ...range } as const].filter(isVisible) };
  const spans = stages(range.startMs, report.queue_ms, report.load_ms, report.compute_ms);
  const computedMs = range.startMs + report.queue_ms + report.load_ms + report.compute_ms;
  if (isLast) spans.push({ kind: 'decoding', startMs: computedMs, endMs: range.endMs });
  return { ...row, spans: spans.filter(isVisible) };
}

function prefillTrack(
  prefill: PrefillPart,
  { number, range, isGiver }: AttemptPosition,
  request: RequestDetail,
): Track {
  const row = { process: prefill.prefill, role: 'prefill', attempt: number, outcome: prefill.outcome } as const;
  const { report } = prefill;
  if (report) return { ...row, spans: stages(range.startMs, report.queue_ms, report.load_ms, report.compute_ms) };
  const endMs = isGiver && request.ttft_ms !== null ? request.ttft_ms : range.endMs;
  return { ...row, spans: [{ kind: 'unmeasured', startMs: range.startMs, endMs } as const].filter(isVisible) };
}

function stages(startMs: number, queueMs: number, loadMs: number, computeMs: number): Span[] {
  const loadAt = startMs + queueMs;
  const computeAt = loadAt + loadMs;
  const spans: Span[] = [
    { kind: 'queue', startMs, endMs: loadAt },
    { kind: 'load', startMs: loadAt, endMs: computeAt },
    { kind: 'compute', startMs: computeAt, endMs: computeAt + computeMs },
  ];
  return spans.filter(isVisible);
}

function isVisible({ startMs, endMs }: Span): boolean {
  return endMs > startMs;
}

/** Returns round values for the marks of a time axis from 0 to `endMs`, about `count` of them. */
export function axisMarks(endMs: number, count: number): number[] {
  if (!(endMs > 0) || count < 1) return [0];
  const rough = endMs / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10) * power;
  return Array.from({ length: Math.floor(endMs / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** Shortest time that is shown as a part of a TTFT. */
const LEAST_MS = 0.05;

/** Returns the parts of a time to the first token that took any time, in their order. */
export function ttftSpans(parts: TtftBreakdown): { readonly kind: SpanKind; readonly ms: number }[] {
  const kinds = { router: 'router', failover: 'lost', queue: 'queue', load: 'load', compute: 'compute' } as const;
  const named = { ...kinds, transport: 'transport' } as const;
  return (Object.keys(named) as (keyof typeof named)[])
    .map((name) => ({ kind: named[name], ms: parts[name] ?? 0 }))
    .filter(({ ms }) => ms >= LEAST_MS);
}
