/** Parts of a placement's price in words. */
import { duration } from '../format.ts';

/** Words for the parts that the policies name; other names are shown as they are. */
const WORDS: Readonly<Record<string, string>> = {
  ttft: 'time to first token',
  of_which_wait: 'of it, waiting for others',
  answer: 'generating the answer',
  lost_by_answer: 'slows other answers',
  lost_by_prompt: 'slows other prompts',
  late: 'beyond its targets',
  role: 'uses an instance of the other role',
  transfer: 'moving blocks',
  queue: 'queue',
  prefill: 'computing the prompt',
};

/** Part of a price. */
interface PricePart {
  readonly name: string;
  readonly words: string;
  readonly ms: number;
}

/** Returns the parts that are not zero, in the policy's order. */
function priceParts(parts: Readonly<Record<string, number | null>> | null): readonly PricePart[] {
  return Object.entries(parts ?? {}).flatMap(([name, ms]) =>
    ms === null || Math.abs(ms) < 0.005 ? [] : [{ name, words: WORDS[name] ?? name.replaceAll('_', ' '), ms }],
  );
}

/** Returns the parts as one line: "time to first token 24 ms, generating the answer 120 ms". */
export function priceText(parts: Readonly<Record<string, number | null>> | null): string {
  return priceParts(parts)
    .map(({ words, ms }) => `${words} ${duration(ms)}`)
    .join(', ');
}
