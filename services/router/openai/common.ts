/** What chat and completions share: model name, stops, usage, headers. */
import { Failure } from '../../../shared/base/failure.ts';
import type { RequestRecord } from '../request_log.ts';
import type { ApiContext } from './prompt_run.ts';

export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly total_tokens: number;
  readonly prompt_tokens_details: { readonly cached_tokens: number };
}

/** @throws Failure `not_found` for a model this cluster does not serve; no name means the one there is. */
export function checkModel({ servedName }: ApiContext, model: string | null | undefined): void {
  if (model !== null && model !== undefined && model !== servedName) {
    throw new Failure(
      'not_found',
      `the model ${JSON.stringify(model)} does not exist; this cluster serves ${JSON.stringify(servedName)}`,
    );
  }
}

export function stopsOf(stop: string | string[] | null | undefined): string[] {
  return [stop ?? []].flat();
}

/** With `ignore_eos` only the tokens that the request names itself end it. */
export function stopTokensOf(
  { folder }: ApiContext,
  body: { readonly ignore_eos?: boolean | null | undefined; readonly stop_token_ids?: number[] | null | undefined },
): number[] {
  return [...(body.ignore_eos ? [] : folder.eosTokenIds), ...(body.stop_token_ids ?? [])];
}

/** Over all prompts of the request; cached is everything that was not computed for it. */
export function usageOf(records: readonly RequestRecord[]): Usage {
  const total = (value: (record: RequestRecord) => number): number =>
    records.reduce((sum, record) => sum + value(record), 0);
  const [prompt, completion] = [total(({ promptTokens }) => promptTokens), total(({ outputTokens }) => outputTokens)];
  return {
    prompt_tokens: prompt,
    completion_tokens: completion,
    total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: total(({ tokens }) => tokens.cached) },
  };
}

/** Where the request ran, in one line; for several prompts, that of the first. */
export function finishedHeaders(record: RequestRecord): Record<string, string> {
  return { 'x-request-id': record.id, 'x-penstock-request': record.header() };
}
