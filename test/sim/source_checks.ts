/** Checks of what requests say of their tokens: each has one source, at the instances that report it and in the router's log. */
import type { RequestRecord } from '../../services/router/record/request_record.ts';
import type { Report } from '../../shared/protocol/messages.ts';

const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);

/** Returns what is wrong with the tokens of a request; undefined when every token of its prompt has one source. */
export function sourceFault({ id, counts }: RequestRecord): string | undefined {
  const { attempts } = counts;
  for (const { decode, report, prefills } of attempts) {
    const reports = [{ name: decode, report }, ...prefills];
    const wrong = reports.find((one) => one.report && !isValid(one.report));
    if (wrong) return `request ${id}: ${wrong.name} reports ${JSON.stringify(wrong.report)}`;
  }
  if (!attempts.some(({ report }) => report)) return undefined;
  // Further samples of a prompt count none of its tokens.
  const { promptTokens, sources, tokens } = counts;
  const values = Object.values(sources) as number[];
  const isWhole = sum(values) === promptTokens && values.every((value) => value >= 0);
  if (isWhole && sources.handoff + sources.computed === tokens.computed) return undefined;
  return `request ${id}: the sources of ${promptTokens} tokens are ${JSON.stringify(sources)}`;
}

/** Whether the sources of a report have all tokens that it does not call computed. */
function isValid({ sources, cachedTokens, fetchedTokens }: Report): boolean {
  return sources !== null && sum(Object.values(sources)) === cachedTokens + fetchedTokens;
}
