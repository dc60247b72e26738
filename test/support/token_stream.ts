/** A streamed completion, read to its end. */
import assert from 'node:assert/strict';
import type { Cluster } from './cluster.ts';

/** Asks for a streamed completion and resolves at its end: its tokens, the error in the stream, and whether it said that it was over. */
export async function streamTokens(
  of: Cluster,
  body: Record<string, unknown>,
): Promise<{ tokens: number[]; error: string | undefined; isDone: boolean }> {
  const response = await fetch(`${of.url}/v1/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ stream: true, temperature: 0, ignore_eos: true, return_token_ids: true, ...body }),
  });
  assert.equal(response.status, 200);
  const tokens: number[] = [];
  let [error, isDone]: [string | undefined, boolean] = [undefined, false];
  for (const line of (await response.text()).split('\n')) {
    if (!line.startsWith('data: ')) continue;
    if (line === 'data: [DONE]') isDone = true;
    else {
      const event = JSON.parse(line.slice(6)) as { error?: { message: string }; choices?: { token_ids?: number[] }[] };
      error ??= event.error?.message;
      tokens.push(...(event.choices?.[0]?.token_ids ?? []));
    }
  }
  return { tokens, error, isDone };
}
