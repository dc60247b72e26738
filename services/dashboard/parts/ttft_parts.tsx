/** Parts of the time to the first token as a bar with its legend. */
import type { VNode } from 'preact';
import { duration } from '../format.ts';
import type { TtftBreakdown } from '../../../shared/protocol/request_detail.ts';
import { ttftSpans } from '../model/waterfall.ts';

/** Words and explanation of each kind of time. */
export const SPAN_WORDS = {
  router: { label: 'router', title: 'The router reads the request, makes tokens of its text and places it' },
  lost: { label: 'lost', title: 'Work of an attempt that failed' },
  queue: { label: 'queue', title: 'Waits for room on the device, after other requests' },
  load: { label: 'load', title: 'Waits for KV blocks that are fetched, or computed on another instance meanwhile' },
  compute: { label: 'compute', title: 'Computes the part of the prompt that is left' },
  transport: { label: 'transport', title: 'Time that no process measured: messages between them' },
  decoding: { label: 'generating', title: 'Generates one token after the other' },
  unmeasured: { label: 'not measured', title: 'The process has not reported what it did' },
} as const;

/** Bar of the parts, each as wide as its time, and their legend. */
export function TtftBar({ parts }: { readonly parts: TtftBreakdown }): VNode {
  const spans = ttftSpans(parts);
  const total = spans.reduce((sum, { ms }) => sum + ms, 0);
  return (
    <>
      <div class="token-bar" aria-hidden="true">
        {spans.map(({ kind, ms }) => (
          <span key={kind} class={`span-colour t-${kind}`} style={{ width: `${(ms / total) * 100}%` }} />
        ))}
      </div>
      <ul class="key">
        {spans.map(({ kind, ms }) => (
          <li key={kind} title={SPAN_WORDS[kind].title}>
            <span class={`letter-box span-colour t-${kind}`} aria-hidden="true" />
            <span>{SPAN_WORDS[kind].label}</span>
            <b>{duration(ms)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}
