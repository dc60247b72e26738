/** The run that is looked at: where it lies in its prompt, how much begins with it, who holds it. */
import type { ComponentChildren, VNode } from 'preact';
import type { BlockRunView, BlocksBody } from '../../../../shared/protocol/router_api.ts';
import { count, dayTime, duration, NONE, plural } from '../../format.ts';
import { tierText } from '../../model/miss_sentences.ts';
import { NodeLink } from '../../parts/common.tsx';
import { hrefOf } from '../../route.ts';

/** Panel of a run; of the whole tree for null. */
export function RunPanel({ body, run }: { readonly body: BlocksBody; readonly run: BlockRunView | null }): VNode {
  return (
    <section class="run-panel" aria-label="Selected run">
      {run ? <RunFacts body={body} run={run} /> : <Whole body={body} />}
    </section>
  );
}

function Whole({ body }: { readonly body: BlocksBody }): VNode {
  const beginnings = body.runs.filter(({ parent }) => parent === null).length;
  return (
    <>
      <h3>All prompts</h3>
      <dl class="rows">
        <Row label="Blocks">{count(body.total_blocks)}</Row>
        <Row label="Holders">{count(body.holders.length)}</Row>
        <Row label="Different beginnings">
          {count(beginnings)}
          {body.is_truncated && ' or more'}
        </Row>
      </dl>
      <p class="soft note-text">Select a run of blocks to see who holds it.</p>
    </>
  );
}

function Row({ label, children }: { readonly label: string; readonly children: ComponentChildren }): VNode {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function RunFacts({ body, run }: { readonly body: BlocksBody; readonly run: BlockRunView }): VNode {
  const { key, depth, length, blocks, children, held_by: holders, used_at: usedAt } = run;
  return (
    <>
      <h3>
        Blocks {count(depth + 1)} to {count(depth + length)} of a prompt
      </h3>
      <dl class="rows">
        <Row label="Key of its first block">
          <span class="id">{key}</span>
        </Row>
        <Row label="Blocks of this run">{count(length)}</Row>
        <Row label="With all that continue it">{plural(blocks, 'block')}</Row>
        <Row label="Different continuations">{count(children)}</Row>
        <Row label="Last used">
          {usedAt === null ? NONE : `${duration(Math.max(0, body.as_of - usedAt))} ago (${dayTime(usedAt)})`}
        </Row>
      </dl>
      <h3>Held by {plural(holders.length, 'node')}</h3>
      <ul class="holders">
        {holders.map(([index, tiers]) => (
          <li key={index}>
            <NodeLink name={body.holders[index] ?? null} /> <span class="soft">{tiers.map(tierText).join(', ')}</span>
          </li>
        ))}
      </ul>
      <p>
        <a href={hrefOf('blocks', key)}>Begin the tree here</a>
      </p>
    </>
  );
}
