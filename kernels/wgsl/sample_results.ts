/** Decodes the results of a step's samples from the words that the device returned. */
import type { SampleRequest, SampleResult } from '../device.ts';
import { NO_TOKEN } from '../sampling.ts';
import { resultWordsOf } from './step_state.ts';

/**
 * Returns the results of the requests, in their order. `words` are laid out as in step_state.ts, sample by sample; `rows` has the
 * whole rows of logits that were wanted, by sample.
 */
export function samplesFrom(
  requests: readonly SampleRequest[],
  vocab: number,
  words: Uint32Array<ArrayBuffer>,
  rows: ReadonlyMap<number, Float32Array>,
): SampleResult[] {
  const floats = new Float32Array(words.buffer);
  let at = 0;
  return requests.map(({ numCandidates, askedTokens, sample }, i) => {
    const kept = Math.min(numCandidates, vocab);
    const ids = at + 2;
    const values = ids + kept;
    const stats = values + kept;
    const asked = kept > 0 ? stats + 2 : at + 1;
    const row = rows.get(i);
    const token = sample ? words[at]! : NO_TOKEN;
    const result: SampleResult = {
      token,
      tokenLogit: kept > 0 && token !== NO_TOKEN ? floats[at + 1]! : NaN,
      candidateIds: words.slice(ids, ids + kept),
      candidateLogits: floats.slice(values, values + kept),
      logSumExp: kept > 0 ? floats[stats]! + Math.log(floats[stats + 1]!) : NaN,
      askedLogits: floats.slice(asked, asked + askedTokens.length),
      ...(row ? { fullRow: row } : {}),
    };
    at += resultWordsOf(numCandidates, askedTokens.length);
    return result;
  });
}
