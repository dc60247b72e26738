/** Counts of a session's requests, as the router's log has them: which tokens of a prompt were computed that need not be. */
import assert from 'node:assert/strict';
import type { RequestView } from '../../support/cluster.ts';

/** Tokens of a KV block, the default of --block-size. */
const BLOCK = 32;
/**
 * Tokens that a turn may compute besides its new ones: the last block of the answer before is not full, and the last of a prompt is
 * computed.
 */
const MAX_AGAIN = 2 * BLOCK;

interface Cost {
  /** The answer's blocks or items, as JSON. */
  readonly answer: string;
  readonly request: RequestView;
  /** Tokens after the prompt and the answer of the turn before; negative when the client or the template left some out. */
  readonly numNew: number;
  /** Computed tokens besides the new ones. */
  readonly again: number;
  /** Tokens that were computed because the template rewrote earlier text, as the router reports them. */
  readonly lost: number;
}

/** Counts of the turns of one session. */
export class PromptCosts {
  readonly turns: Cost[] = [];

  /**
   * Adds the counts of a finished request. `header`: the answer's x-penstock-request. `url`: the router that answered. `answer`: its
   * blocks or items, as JSON.
   */
  async add(url: string, header: string | null, answer: string): Promise<void> {
    const { id } = JSON.parse(header ?? '{}') as { id?: string };
    const { requests } = (await (await fetch(`${url}/api/requests?limit=8`)).json()) as { requests: RequestView[] };
    const request = requests.find((one) => one.id === id);
    assert(request, `the log has request ${id}`);
    const before = this.turns.at(-1)?.request;
    const numNew = request.prompt_tokens - (before ? before.prompt_tokens + before.output_tokens : 0);
    // Where text was left out, nothing of the prompt need be new.
    const again = request.tokens.computed - Math.max(0, numNew);
    this.turns.push({ answer, request, numNew, again, lost: request.lost_tokens ?? 0 });
  }

  /** Fails with a table of all turns when one but the first computed more than its new tokens and two blocks. */
  check(): void {
    const tooMany = this.turns.flatMap(({ again }, i) => (i > 0 && again > MAX_AGAIN ? [i + 1] : []));
    assert.deepEqual(tooMany, [], `turns that computed more than their new tokens and two blocks:\n${this.table()}`);
  }

  /**
   * Fails with a table of all turns when one computed tokens of the first prompt again, or when `isSeen` and no turn reports lost tokens: for
   * sessions in which the template drops parts of earlier answers.
   */
  checkDropping(isSeen: boolean): void {
    const [first, ...others] = this.turns;
    const numFirst = (first?.request.prompt_tokens ?? 0) - BLOCK;
    for (const { request } of others) assert(request.tokens.cached >= numFirst, this.table());
    const isReported = others.some(({ lost }) => lost > 0);
    assert(!isSeen || isReported, this.table());
  }

  /** Returns a line per turn. */
  table(): string {
    const columns = ['turn', 'prompt', 'new', 'cached', 'fetched', 'computed', 'again', 'lost', 'output'];
    const lines = this.turns.map(({ answer, request, numNew, again, lost }, i) => {
      const { prompt_tokens: prompt, tokens, output_tokens: output } = request;
      const numbers = [i + 1, prompt, numNew, tokens.cached, tokens.fetched, tokens.computed, again, lost, output];
      return `${numbers.map((number) => String(number).padStart(8)).join(' ')}  ${answer.slice(0, 160)}`;
    });
    return [`${columns.map((name) => name.padStart(8)).join(' ')}  answer`, ...lines].join('\n');
  }
}
