/** One request with all that the router knows of it. */
import type { ComponentChildren, VNode } from 'preact';
import { bytes, count, dayTime, duration, NONE, percent } from '../../format.ts';
import { missSentence } from '../../model/miss_sentences.ts';
import { hasEnded } from '../../model/request_filter.ts';
import { promptTokens, unknownSources } from '../../model/request_detail.ts';
import type { Compared, RequestDetail } from '../../../../shared/protocol/request_detail.ts';
import { sourceSegments, totalOf } from '../../model/token_segments.ts';
import { timedNote } from '../../model/waterfall.ts';
import { AsOf, Card, Notice } from '../../parts/common.tsx';
import { saveJson } from '../../parts/save_json.ts';
import { useSteadyJson } from '../../parts/steady_json.ts';
import { TokenBar, TokenLegend } from '../../parts/token_text.tsx';
import { hrefOf } from '../../route.ts';
import { Attempts } from './attempts.tsx';
import type { RequestCard } from './request_card.ts';
import { PhaseWord } from './request_list.tsx';
import { WaterfallCard } from './waterfall_card.tsx';

/** Milliseconds between two looks at a request that still runs. */
const RUNNING_MS = 1_000;

/** Page of the request `id`. */
export function RequestPage({ id }: { readonly id: string }): VNode {
  const { body, error } = useSteadyJson<RequestDetail>(`api/requests/${encodeURIComponent(id)}`, (last) =>
    last === undefined || !hasEnded(last) ? RUNNING_MS : 0,
  );
  if (!body) {
    return (
      <Card wide title="Request" note={<Back />}>
        <Notice error={error}>Loading…</Notice>
      </Card>
    );
  }
  const at = body.as_of;
  return (
    <>
      <Summary request={body} at={at} />
      <WaterfallCard request={body} at={at} />
      <Sources request={body} at={at} />
      <Predictions request={body} at={at} />
      <Texts request={body} at={at} />
      <Attempts request={body} at={at} />
      <Notes request={body} at={at} />
    </>
  );
}

function Back(): VNode {
  return <a href={hrefOf('requests')}>← All requests</a>;
}

/** When the request arrived, in milliseconds since 1970. */
function startedAt({ started_at: at }: RequestDetail): number {
  return Date.parse(at);
}

function Fact({ label, children }: { readonly label: string; readonly children: ComponentChildren }): VNode {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Summary({ request, at }: RequestCard): VNode {
  const { ttft_ms: ttftMs, total_ms: totalMs, output_tokens: outputTokens } = request;
  const tbtMs = ttftMs !== null && outputTokens > 1 ? (totalMs - ttftMs) / (outputTokens - 1) : null;
  return (
    <Card
      wide
      title="Request"
      note={
        <>
          <Back /> · <AsOf at={at} />
        </>
      }
    >
      <div class="request-title">
        <h3 class="id">{request.id}</h3>
        <PhaseWord phase={request.phase} />
        <span class="spring" />
        <button
          type="button"
          title="Save all that is below as a JSON file"
          onClick={() => saveJson(request.id, request)}
        >
          Export
        </button>
      </div>
      {request.error !== null && <p class="failure">{request.error}</p>}
      <dl class="fact-tiles">
        <Fact label="First token after">{duration(ttftMs)}</Fact>
        <Fact label="Between tokens">{duration(tbtMs)}</Fact>
        <Fact label="Total">{duration(totalMs)}</Fact>
        <Fact label="Prompt tokens">{count(promptTokens(request))}</Fact>
        <Fact label="Output tokens">{count(outputTokens)}</Fact>
        <Fact label="KV fetched">{bytes(request.fetched_bytes)}</Fact>
      </dl>
      <dl class="fact-line">
        <Fact label="Model">{request.model ?? NONE}</Fact>
        <Fact label="Endpoint">{request.endpoint}</Fact>
        <Fact label="Started">{dayTime(startedAt(request))}</Fact>
        <Fact label="Ended by">{request.finish_reason ?? NONE}</Fact>
        <Fact label="Client's id">{request.client_id ?? NONE}</Fact>
        {request.tenant !== null && <Fact label="Tenant">{request.tenant}</Fact>}
        {request.key !== null && <Fact label="Key">{request.key}</Fact>}
        {request.trace_id !== null && <Fact label="Trace">{request.trace_id}</Fact>}
        {request.sample_of !== null && (
          <Fact label="Further sample of">
            <a href={hrefOf('requests', request.sample_of)}>{request.sample_of}</a>
          </Fact>
        )}
      </dl>
    </Card>
  );
}

function Sources({ request, at }: RequestCard): VNode {
  const { sources } = request;
  return (
    <Card title="Where the prompt's KV came from" note={<AsOf at={at} />}>
      {totalOf(sources) > 0 ? <SourceBody request={request} /> : <Notice>{unknownSources(request)}</Notice>}
    </Card>
  );
}

function SourceBody({ request }: { readonly request: RequestDetail }): VNode {
  const { sources, misses } = request;
  const { segments, legend } = sourceSegments(sources, misses);
  const at = startedAt(request);
  return (
    <>
      <TokenBar segments={segments} />
      <TokenLegend legend={legend} />
      <h3>Why tokens were computed</h3>
      {misses.length === 0 ? (
        <Notice>No reason is kept for this request.</Notice>
      ) : (
        <ul class="sentences">
          {misses.map((miss) => (
            <li key={`${miss.start} ${miss.reason}`}>{missSentence(miss, at)}</li>
          ))}
        </ul>
      )}
    </>
  );
}

const PREDICTED = [
  ['ttft_ms', 'Time to first token', duration],
  ['tbt_ms', 'Between tokens', duration],
  ['cached_tokens', 'Reused tokens', count],
  ['output_tokens', 'Output tokens', count],
] as const;

function Predictions({ request, at }: RequestCard): VNode {
  const { predictions, targets, rejection } = request;
  const rows = PREDICTED.flatMap(([name, label, format]) => {
    const value = predictions[name];
    return value ? [{ label, format, value }] : [];
  });
  return (
    <Card title="Predicted and real" note={<AsOf at={at} />}>
      {rows.length === 0 ? (
        <Notice>Nothing was predicted, or nothing came to compare with.</Notice>
      ) : (
        <table class="grid-table">
          <thead>
            <tr>
              <th scope="col">Value</th>
              <th scope="col" class="number">
                Predicted
              </th>
              <th scope="col" class="number">
                Real
              </th>
              <th scope="col" class="number">
                Off by
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map(({ label, format, value }) => (
              <tr key={label}>
                <th scope="row">{label}</th>
                <td class="number">{format(value.predicted)}</td>
                <td class="number">{format(value.real)}</td>
                <td class="number">{offText(value)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {rows.length > 0 && (
        <p class="soft note-text">
          Times count from the placement, not from the arrival. A prediction is that of the price below, corrected by
          how far the last requests were off.
        </p>
      )}
      {targets && (
        <p>
          Targets: first token within {duration(targets.ttft_ms)}, between tokens {duration(targets.tbt_ms)}, whole
          answer within {duration(targets.deadline_ms)}.
        </p>
      )}
      {rejection && (
        <p class="failure">
          Refused for its targets ({rejection.reason})
          {rejection.retry_after_ms !== null && `; another try was advised after ${duration(rejection.retry_after_ms)}`}
          .
        </p>
      )}
    </Card>
  );
}

function offText({ predicted, real }: Compared): string {
  if (predicted === real) return '0 %';
  if (real === 0) return NONE;
  const share = (predicted - real) / real;
  return `${share > 0 ? '+' : '−'}${percent(Math.abs(share))}`;
}

/** Prompt and answer, of a router that keeps them; whatever they contain is shown as text. */
function Texts({ request, at }: RequestCard): VNode | null {
  const { prompt, answer, cut = [] } = request;
  if (prompt === undefined || answer === undefined) return null;
  return (
    <Card wide title="Prompt and answer" note={<AsOf at={at} />}>
      <p class="soft note-text">
        Kept because the router runs with --log-prompts: everybody who reaches this page reads them.
      </p>
      <LoggedText label="Prompt" text={prompt} />
      <LoggedText label="Answer" text={answer} />
      {cut.map((sentence) => (
        <p key={sentence} class="soft note-text">
          {sentence}
        </p>
      ))}
    </Card>
  );
}

function LoggedText({ label, text }: { readonly label: string; readonly text: string | readonly number[] }): VNode {
  const isText = typeof text === 'string';
  return (
    <>
      <h3>{isText ? label : `${label}, as token ids`}</h3>
      <pre class="logged-text" tabIndex={0} role="group" aria-label={label}>
        {isText ? text : text.join(', ')}
      </pre>
    </>
  );
}

function Notes({ request, at }: RequestCard): VNode | null {
  if (request.notes.length === 0) return null;
  return (
    <Card wide title="Notes of the router" note={<AsOf at={at} />}>
      <ol class="notes">
        {request.notes.map(timedNote).map(({ atMs, text }, i) => (
          <li key={i}>
            <span class="soft">{duration(atMs)}</span> {text}
          </li>
        ))}
      </ol>
    </Card>
  );
}
