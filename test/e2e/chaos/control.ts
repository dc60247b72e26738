/**
 * The stream alongside an abuse, in a process of its own: what the abuser's process does to itself is not the cluster's. Forked with the
 * cluster's URL and the headers of its client as JSON; says `begun`, and when it is told to stop, what it saw.
 */
/* eslint-disable time/speed -- `npm run chaos` measures; chaos.test.ts asks for no time */
import { eventsOf } from './load.ts';

export interface ControlReport {
  /** Between two tokens of one stream. */
  readonly worstGapMs: number;
  readonly numTokens: number;
  readonly error: string | undefined;
}

/** Tokens before its gaps count: the first steps of a cluster are not its usual ones. */
const NUM_BEFORE = 20;

const [url = '', headers = '{}'] = process.argv.slice(2);
const over = new AbortController();
let [worstGapMs, numTokens] = [0, 0];
let error: string | undefined;

process.on('message', () => {
  over.abort();
});

const notify = (message: 'begun' | ControlReport): void => {
  process.send?.(message);
};

while (!over.signal.aborted && error === undefined) {
  try {
    const response = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...(JSON.parse(headers) as Record<string, string>) },
      body: JSON.stringify({
        prompt: [9, 8, 7],
        max_tokens: 2_000,
        ignore_eos: true,
        stream: true,
        return_token_ids: true,
      }),
    });
    let lastMs: number | undefined;
    for await (const event of eventsOf(response)) {
      const nowMs = performance.now();
      if (numTokens > NUM_BEFORE) worstGapMs = Math.max(worstGapMs, nowMs - (lastMs ?? nowMs));
      lastMs = nowMs;
      error ??= event.error?.message;
      if (numTokens++ === NUM_BEFORE) notify('begun');
    }
  } catch (failure) {
    error = String(failure);
  }
}
notify({ worstGapMs, numTokens, error });
process.disconnect();
