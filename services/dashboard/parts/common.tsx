/** Small parts that all views are made of. */
import type { ComponentChildren, VNode } from 'preact';
import { clockTime, percent } from '../format.ts';
import { store } from '../page.ts';
import { hrefOf } from '../route.ts';

/** Time on the router's clock at which the values around it were read. Without `at`: those of the stream. */
export function AsOf({ at }: { readonly at?: number | undefined }): VNode {
  const read = at ?? store.asOf.value;
  return (
    <span class="as-of" title="When these values were read, on the router's clock">
      as of {clockTime(read)}
    </span>
  );
}

/** A titled box. `note` stands at the right of its title. */
export function Card(props: {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
}): VNode {
  return (
    <section class={props.wide ? 'card wide' : 'card'} aria-label={props.title}>
      <header>
        <h2>{props.title}</h2>
        <div class="note">{props.note ?? <AsOf />}</div>
      </header>
      {props.children}
    </section>
  );
}

/** A bar that says how full something is, with the share as text. */
export function Meter(props: { readonly share: number; readonly label: string }): VNode {
  const share = Math.max(0, Math.min(1, Number.isFinite(props.share) ? props.share : 0));
  return (
    <span class="meter" title={props.label}>
      <span class="meter-bar" aria-hidden="true">
        <span class={share > 0.97 ? 'full' : ''} style={{ width: `${share * 100}%` }} />
      </span>
      <span class="meter-text">{percent(share)}</span>
    </span>
  );
}

/** State of a node as a word with a colour. */
export function StateWord({ state }: { readonly state: string }): VNode {
  const tone = state === 'alive' ? 'good' : state === 'draining' ? 'warn' : 'bad';
  return <span class={`word ${tone}`}>{state}</span>;
}

/** Link to a node's page; plain text for a dash. */
export function NodeLink({ name }: { readonly name: string | null }): VNode {
  return name === null ? <span>–</span> : <a href={hrefOf('pool', 'node', name)}>{name}</a>;
}

/** Letters of an error that are shown: some name everything that there is. */
const MAX_ERROR = 240;

/** Text in place of content that is missing, loading or failed. */
export function Notice({ error, children }: { readonly error?: string | undefined; readonly children: string }): VNode {
  const text = error ?? children;
  return (
    <p class={error === undefined ? 'notice' : 'notice bad'}>
      {text.length > MAX_ERROR ? `${text.slice(0, MAX_ERROR)}…` : text}
    </p>
  );
}
