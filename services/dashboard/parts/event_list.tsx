/** Events of the cluster as a list. */
import type { VNode } from 'preact';
import type { ClusterEvent } from '../../../shared/protocol/router_api.ts';
import { eventWord } from '../event_words.ts';
import { dayTime } from '../format.ts';
import { NodeLink } from './common.tsx';

/** Events, newest first; at most `limit`. */
export function EventList(props: { readonly events: readonly ClusterEvent[]; readonly limit: number }): VNode {
  if (props.events.length === 0) return <p class="notice">Nothing has happened since the router started.</p>;
  return (
    <ol class="events">
      {props.events.slice(0, props.limit).map((event) => {
        const { word, tone } = eventWord(event);
        return (
          <li key={event.id}>
            <time dateTime={new Date(event.at).toISOString()}>{dayTime(event.at)}</time>
            <span class={`word ${tone}`}>{word}</span>
            {event.node !== null && <NodeLink name={event.node} />}
            <span class="event-text">{event.text}</span>
          </li>
        );
      })}
    </ol>
  );
}
