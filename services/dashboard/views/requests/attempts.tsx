/** Attempts of a request: why each was placed where it was, for which price, and which placements were not taken. */
import type { VNode } from 'preact';
import { count, duration, NONE, plural } from '../../format.ts';
import { priceText } from '../../model/price_words.ts';
import type { AttemptPart, OtherPlacement, Priced } from '../../../../shared/protocol/request_detail.ts';
import { AsOf, Card, NodeLink, Notice } from '../../parts/common.tsx';
import type { RequestCard } from './request_card.ts';

/** Attempts of a request with their placements. */
export function Attempts({ request, at }: RequestCard): VNode {
  const { attempts } = request;
  return (
    <Card
      wide
      title={attempts.length > 1 ? `Placement: ${attempts.length} attempts` : 'Placement'}
      note={<AsOf at={at} />}
    >
      {attempts.length === 0 ? (
        <Notice>The request was never placed on an instance.</Notice>
      ) : (
        attempts.map((attempt, i) => <AttemptSection key={i} attempt={attempt} number={i + 1} of={attempts.length} />)
      )}
    </Card>
  );
}

function AttemptSection(props: { readonly attempt: AttemptPart; readonly number: number; readonly of: number }): VNode {
  const { attempt, number, of } = props;
  const { placement, prefills } = attempt;
  return (
    <section class="attempt" aria-label={`Attempt ${number}`}>
      <h3>
        {of > 1 && `Attempt ${number}: `}
        {prefills.length > 0 && (
          <>
            prompt on <NodeLink name={prefills.map(({ prefill }) => prefill).at(-1) ?? null} />,{' '}
          </>
        )}
        answer on <NodeLink name={attempt.decode} />{' '}
        <span class="soft">
          {attempt.outcome}
          {placement?.policy && ` · policy ${placement.policy}`}
          {placement?.is_late && ' · misses a target by its own work alone'}
        </span>
      </h3>
      <p>{attempt.reason}</p>
      {prefills.length > 0 && (
        <ul class="sentences">
          {prefills.map(({ prefill, ready_tokens: ready, outcome }, i) => (
            <li key={i}>
              {prefill}: {plural(ready, 'token')} ready, {outcome}
            </li>
          ))}
        </ul>
      )}
      {placement ? <Placements attempt={attempt} placement={placement} /> : null}
    </section>
  );
}

function Placements(props: {
  readonly attempt: AttemptPart;
  readonly placement: NonNullable<AttemptPart['placement']>;
}): VNode {
  const { attempt, placement } = props;
  const prefill = attempt.prefills[0]?.prefill ?? null;
  return (
    <table class="grid-table stacking">
      <caption>
        The placement that was taken, and {plural(placement.alternatives.length, 'other')} that were not, with what each
        was expected to cost
      </caption>
      <thead>
        <tr>
          <th scope="col">Placement</th>
          <th scope="col" class="number" title="The policy takes the lowest price">
            Price
          </th>
          <th scope="col" class="number" title="Tokens that would not be computed">
            Reused
          </th>
          <th scope="col" class="number" title="Sequences before it">
            Queue
          </th>
          <th scope="col">Parts of the price</th>
        </tr>
      </thead>
      <tbody>
        <PlacementRow name={nameOf(attempt.decode, prefill)} priced={placement} isChosen />
        {placement.alternatives.map((other, i) => (
          <PlacementRow
            key={i}
            name={nameOf(nodeOf(other.decode), nodeOf(other.prefill), nodeOf(other.second_prefill ?? null))}
            priced={other}
            other={other}
            base={placement.price_ms}
          />
        ))}
      </tbody>
    </table>
  );
}

/** Name of a placement: "prefill-1 → decode-2". */
export function nameOf(decode: string | null, prefill: string | null, second: string | null = null): string {
  const prefills = [prefill, second].filter((name) => name !== null).join(' + ');
  return prefills === '' ? (decode ?? NONE) : `${prefills} → ${decode ?? NONE}`;
}

/** Name of the node of an instance's id, which is its name and its epoch. */
function nodeOf(id: string | null): string | null {
  return id === null || !id.includes('/') ? id : id.slice(0, id.lastIndexOf('/'));
}

function PlacementRow(props: {
  readonly name: string;
  readonly priced: Priced;
  readonly isChosen?: boolean;
  readonly other?: OtherPlacement;
  readonly base?: number | null;
}): VNode {
  const { name, priced, isChosen = false, other, base } = props;
  const { price_ms: price, prediction } = priced;
  const more = price !== null && base !== null && base !== undefined ? price - base : null;
  return (
    <tr class={isChosen ? 'selected' : ''}>
      <th scope="row">
        {name} {isChosen && <span class="word good">taken</span>}
      </th>
      <td class="number" data-label="Price">
        {duration(price)}
        {more !== null && (
          <span class="soft">
            {' '}
            ({more < 0 ? '−' : '+'}
            {duration(Math.abs(more))})
          </span>
        )}
      </td>
      <td class="number" data-label="Reused">
        {count(prediction?.cached_tokens)}
      </td>
      <td class="number" data-label="Queue">
        {other ? count(other.queue_length) : NONE}
      </td>
      <td class="wide" data-label="Parts">
        {priceText(priced.price_parts_ms) || NONE}
      </td>
    </tr>
  );
}
