/** One turn of the chat: the question, the answer, and where the KV of its prompt came from. */
import type { VNode } from 'preact';
import { count, duration, percent, plural } from '../../format.ts';
import type { RequestDetail } from '../../../../shared/protocol/request_detail.ts';
import { missSentence } from '../../model/miss_sentences.ts';
import { sourceSegments, totalOf } from '../../model/token_segments.ts';
import { Notice } from '../../parts/common.tsx';
import { TokenBar, TokenLegend, TokenText } from '../../parts/token_text.tsx';
import { TtftBar } from '../../parts/ttft_parts.tsx';
import { hrefOf } from '../../route.ts';
import type { Answer, Turn } from './chat_state.ts';

/** One turn. */
export function TurnView({ turn, isLast }: { readonly turn: Turn; readonly isLast: boolean }): VNode {
  const answer = turn.answer.value;
  const { content, reasoning, finish, error, isRunning } = answer;
  return (
    <li class="turn">
      <p class="question">
        <b class="hidden">You: </b>
        {turn.question}
      </p>
      <div class="answer" aria-live={isLast ? 'polite' : undefined} aria-busy={isRunning}>
        <b class="hidden">Model: </b>
        {reasoning !== '' && <p class="reasoning">{reasoning}</p>}
        {content !== '' && <p>{content}</p>}
        {content === '' && isRunning && <p class="soft">waiting for the first token…</p>}
        {error !== undefined && <Notice error={error}>{''}</Notice>}
        {finish === 'length' && <p class="soft note-text">Cut off: it reached the most tokens that it may have.</p>}
        {finish === 'stopped' && <p class="soft note-text">Stopped.</p>}
      </div>
      {answer.request ? <Facts answer={answer} request={answer.request} isLast={isLast} /> : <Early answer={answer} />}
    </li>
  );
}

/** Facts that are known before the request has ended. */
function Early({ answer }: { readonly answer: Answer }): VNode | null {
  const { id, lookup } = answer;
  if (!lookup && id === undefined) return null;
  return (
    <p class="soft note-text">
      {lookup && `${plural(lookup.cached_tokens, 'token')} of ${count(lookup.prompt_tokens)} held when it was asked. `}
      {id !== undefined && <a href={hrefOf('requests', id)}>Its request</a>}
    </p>
  );
}

function Facts(props: { readonly answer: Answer; readonly request: RequestDetail; readonly isLast: boolean }): VNode {
  const { answer, request, isLast } = props;
  const { sources, misses, ttft_ms: ttftMs, ttft_parts_ms: parts } = request;
  const total = totalOf(sources);
  const colours = total > 0 ? sourceSegments(sources, misses) : undefined;
  const reused = total - sources.computed - sources.handoff;
  const { texts, prompt_tokens: looked } = answer.lookup ?? {};
  const at = Date.parse(request.started_at);
  return (
    <section class="turn-facts" aria-label="Where its KV came from">
      {colours && (
        <div>
          <h3>
            Prompt: {plural(total, 'token')}, {percent(reused / total)} reused
          </h3>
          <TokenBar segments={colours.segments} />
          <TokenLegend legend={colours.legend} />
        </div>
      )}
      {parts && (
        <div>
          <h3>First token after {duration(ttftMs)}</h3>
          <TtftBar parts={parts} />
        </div>
      )}
      <div class="turn-more">
        <a href={hrefOf('requests', request.id)}>All about this request</a>
        {colours && texts && looked === total && (
          <details open={isLast}>
            <summary>Tokens of its prompt</summary>
            <TokenText colours={colours} texts={texts} />
          </details>
        )}
        {misses.length > 0 && (
          <details>
            <summary>Why tokens were computed</summary>
            <ul class="sentences">
              {misses.map((miss) => (
                <li key={`${miss.start} ${miss.reason}`}>{missSentence(miss, at)}</li>
              ))}
            </ul>
          </details>
        )}
      </div>
    </section>
  );
}
