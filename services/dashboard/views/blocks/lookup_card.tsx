/** A prompt is looked up: who holds its tokens, where it would be placed for which price. Its text stays in the page and in the answer. */
import { signal, useSignal } from '@preact/signals';
import type { VNode } from 'preact';
import { useEffect } from 'preact/hooks';
import type { LookupBody } from '../../../../shared/protocol/router_api.ts';
import { askJson } from '../../browser.ts';
import { count, duration, NONE, percent, plural } from '../../format.ts';
import { messageOf } from '../../messages.ts';
import { lookupRequest, type LookupForm } from '../../model/lookup_request.ts';
import { missSentence } from '../../model/miss_sentences.ts';
import { priceText } from '../../model/price_words.ts';
import { holderSegments, type TokenColours } from '../../model/token_segments.ts';
import { AsOf, Card, Notice } from '../../parts/common.tsx';
import { ModelField } from '../../parts/model_field.tsx';
import { Swatch, TokenBar, TokenLegend, TokenText } from '../../parts/token_text.tsx';
import { nameOf } from '../requests/attempts.tsx';

const form = signal<LookupForm>({ kind: 'chat', text: '', model: '', salt: '' });

/** Card with the form and its answer. */
export function LookupCard(): VNode {
  const found = useSignal<LookupBody | undefined>(undefined);
  const error = useSignal<string | undefined>(undefined);
  const isAsking = useSignal(false);
  const aborter = useSignal(new AbortController());
  useEffect(() => () => aborter.peek().abort(), []);
  const look = async (): Promise<void> => {
    isAsking.value = true;
    error.value = undefined;
    try {
      const options = { ...lookupRequest(form.peek()), signal: aborter.peek().signal };
      found.value = await askJson<LookupBody>('api/lookup', options);
    } catch (failure) {
      if (aborter.peek().signal.aborted) return;
      error.value = messageOf(failure);
      found.value = undefined;
    }
    isAsking.value = false;
  };
  return (
    <Card wide title="Where does a prompt lie?" note={found.value && <AsOf at={found.value.as_of} />}>
      <Form isAsking={isAsking.value} onSubmit={() => void look()} />
      {error.value !== undefined && <Notice error={error.value}>{''}</Notice>}
      {found.value && <Found body={found.value} />}
    </Card>
  );
}

function Form(props: { readonly isAsking: boolean; readonly onSubmit: () => void }): VNode {
  const { kind, text, model, salt } = form.value;
  const change = (part: Partial<LookupForm>): void => {
    form.value = { ...form.peek(), ...part };
  };
  return (
    <form
      class="lookup-form"
      aria-label="Look a prompt up"
      onSubmit={(event) => {
        event.preventDefault();
        props.onSubmit();
      }}
    >
      <label class="grow">
        <span>{kind === 'chat' ? 'Message of a user, which the chat template is put around' : 'Prompt, as it is'}</span>
        <textarea rows={3} required value={text} onInput={(event) => change({ text: event.currentTarget.value })} />
      </label>
      <div class="form-line">
        <label>
          <span>Kind</span>
          <select
            value={kind}
            onChange={(event) => change({ kind: event.currentTarget.value === 'prompt' ? 'prompt' : 'chat' })}
          >
            <option value="chat">chat message</option>
            <option value="prompt">plain prompt</option>
          </select>
        </label>
        <ModelField value={model} onChange={(value) => change({ model: value })} />
        <label>
          <span>Salt (if requests have one)</span>
          <input type="text" value={salt} onInput={(event) => change({ salt: event.currentTarget.value })} />
        </label>
        <button type="submit" class="primary" disabled={props.isAsking}>
          {props.isAsking ? 'Looking…' : 'Look it up'}
        </button>
      </div>
      <p class="soft note-text">Nothing is computed and nothing of the text is kept.</p>
    </form>
  );
}

function Found({ body }: { readonly body: LookupBody }): VNode {
  const colours = holderSegments(body);
  const { prompt_tokens: total, cached_tokens: cached, misses, texts, placements, unplaced } = body;
  const chosen = placements.find((one) => one.is_chosen);
  return (
    <div class="found" aria-live="polite">
      <p>
        <b>
          {cached === 0
            ? `None of the ${plural(total, 'token')}`
            : `${count(cached)} of ${plural(total, 'token')} (${percent(cached / total)})`}
        </b>{' '}
        would come from the cache{chosen ? ` on ${nameOf(chosen.decode, chosen.prefill)}` : ''}, if {body.model} got
        this prompt now; {cached === 0 ? 'all' : 'the rest'} would be computed.
      </p>
      <TokenBar segments={colours.segments} />
      <TokenLegend legend={colours.legend} />
      {texts ? <TokenText colours={colours} texts={texts} /> : null}
      <Ranges colours={colours} blockSize={body.block_size} />
      {misses.length > 0 && (
        <>
          <h3>Why the rest would be computed</h3>
          <ul class="sentences">
            {misses.map((miss) => (
              <li key={`${miss.start} ${miss.reason}`}>{missSentence(miss, body.as_of, 'now')}</li>
            ))}
          </ul>
        </>
      )}
      <Placements placements={placements} unplaced={unplaced} />
    </div>
  );
}

function Ranges({ colours, blockSize }: { readonly colours: TokenColours; readonly blockSize: number }): VNode {
  return (
    <details>
      <summary>Ranges as a table (blocks of {count(blockSize)} tokens)</summary>
      <div class="scroll" tabIndex={0} role="region" aria-label="Ranges of the prompt">
        <table class="grid-table">
          <thead>
            <tr>
              <th scope="col">Tokens</th>
              <th scope="col" class="number">
                Number
              </th>
              <th scope="col">Held by</th>
            </tr>
          </thead>
          <tbody>
            {colours.segments.map(({ start, end, label, colour }) => (
              <tr key={start}>
                <td>
                  {count(start)} to {count(end - 1)}
                </td>
                <td class="number">{count(end - start)}</td>
                <td class="wide">
                  <Swatch colour={colour} /> {label}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function Placements({ placements, unplaced }: Pick<LookupBody, 'placements' | 'unplaced'>): VNode | null {
  if (placements.length === 0)
    return <Notice>{`No instance can take this prompt now${unplaced === null ? '' : `: ${unplaced}`}.`}</Notice>;
  return (
    <table class="grid-table stacking">
      <caption>Placements that the prompt could get; the policy takes the one with the lowest price</caption>
      <thead>
        <tr>
          <th scope="col">Placement</th>
          <th scope="col" class="number">
            Price
          </th>
          <th scope="col">Parts of the price, and the reason</th>
        </tr>
      </thead>
      <tbody>
        {placements.map((one, i) => (
          <tr key={i} class={one.is_chosen ? 'selected' : ''}>
            <th scope="row">
              {nameOf(one.decode, one.prefill)} {one.is_chosen && <span class="word good">would be taken</span>}
            </th>
            <td class="number" data-label="Price">
              {duration(one.price_ms)}
            </td>
            <td class="wide" data-label="Why">
              {[priceText(one.parts), one.reason].filter(Boolean).join(' — ') || NONE}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
