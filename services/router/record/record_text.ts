/**
 * Record of an ended request as one text: its state as JSON, of which the log keeps thousands. A text is one object of the heap where the state is
 * some sixty, so that it is cheap to keep, and its size is known.
 *
 * The text leaves out what no reader shows: links in reports, the span above the request, and all of an error but its message.
 */
import { messageOf } from '../../../shared/base/failure.ts';
import type { Explanation } from '../../../shared/placement/policy.ts';
import type { Report } from '../../../shared/protocol/messages.ts';
import type { Miss } from '../../../shared/protocol/router_api.ts';
import { PromptMisses } from './miss_reasons.ts';
import type { AttemptEntry } from './request_counts.ts';
import type { RequestFacts } from './request_facts.ts';
import { RequestFold, type RequestRecord } from './request_record.ts';
import type { Expected, RecordState } from './request_state.ts';

/** State as its text has it. */
interface WrittenState extends Omit<RecordState, 'expected'> {
  readonly expected: Omit<Expected, 'misses'> & { readonly misses: readonly Miss[] | undefined };
}

/** Returns the record of an ended request as a text. */
export function recordText({ state }: RequestRecord): string {
  const { facts, expected, end, counts } = state;
  const written: WrittenState = {
    ...state,
    facts: writtenFacts(facts),
    expected: { ...expected, misses: expected.misses?.all },
    counts: { ...counts, attempts: counts.attempts.map(writtenAttempt) },
    end: end && { ...end, failure: end.failure === undefined ? undefined : messageOf(end.failure) },
  };
  return JSON.stringify(written);
}

/** Returns the record that a text was made of. */
export function recordOf(text: string): RequestRecord {
  const { expected, ...state } = JSON.parse(text) as WrittenState;
  const { misses, ...others } = expected;
  return new RequestFold({ ...state, expected: { ...others, misses: misses && new PromptMisses(misses) } });
}

function writtenFacts({ names, ...facts }: RequestFacts): RequestFacts {
  return { ...facts, names: { ...names, parent: undefined } };
}

function writtenAttempt({ explanation, report, prefills, ...attempt }: AttemptEntry): AttemptEntry {
  return {
    ...attempt,
    explanation: explanation && writtenExplanation(explanation),
    report: report && writtenReport(report),
    prefills: prefills.map((prefill) => ({ ...prefill, report: prefill.report && writtenReport(prefill.report) })),
  };
}

/** Names the fields one by one: a decision has more than its explanation. */
function writtenExplanation({ policy, isLate, priceMs, parts, prediction, alternatives }: Explanation): Explanation {
  return { policy, isLate, priceMs, parts, prediction, alternatives };
}

function writtenReport(report: Report): Report {
  return { ...report, links: [] };
}
