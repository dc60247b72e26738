/**
 * Predicts how many tokens an answer will have, from the answers to similar requests.
 *
 *   tenant + kind + template + length ──► tenant + kind + template ──► tenant + kind + length ──► kind + length ──► kind ──► all
 *
 * The first of these groups with enough answers decides. A group keeps decaying sums: tokens, and answers that ended by themselves.
 * Their quotient is the mean of the answers' lengths also where many were cut by their limit, since a cut answer adds its tokens only.
 */

/** Upper bound of the groups (P1); beyond it those that were used longest ago are forgotten. */
const MAX_GROUPS = 1 << 14;
/** Groups that are forgotten together. */
const NUM_FORGOTTEN = 1 << 10;
/** Answers that a group needs before it is used: fewer tell little. */
const MIN_ANSWERS = 8;
/** Share of its sums that a group keeps when it learns another answer: the last 64 weigh most. */
const KEPT = 1 - 1 / 64;
/** Tokens of an answer while nothing was learnt. */
const UNKNOWN_TOKENS = 256;
/** Prompts are grouped by length, in powers of this number. */
const BUCKET_BASE = 4;

/** Facts about a request that are known before it runs. */
export interface LengthFeatures {
  readonly tenant: string;
  /** Endpoint and form of the answer. */
  readonly kind: string;
  /** Names the text that prompts of one application begin with; empty where it is not known. */
  readonly template: string;
  readonly promptTokens: number;
  /** Most tokens that the answer may have. */
  readonly maxTokens: number;
}

/** Predicts the lengths of answers. */
export interface LengthPredictor {
  /** Returns the expected tokens of the answer, at most `maxTokens`. */
  predict(features: LengthFeatures): number;
  /** Learns from an answer of so many tokens. `isCut`: its limit or its client ended it, so that it could have been longer. */
  learn(features: LengthFeatures, outputTokens: number, isCut: boolean): void;
}

interface Group {
  numAnswers: number;
  /** Tokens of the answers, and answers that were not cut; earlier ones with less weight. */
  tokens: number;
  numEnds: number;
}

/** The default predictor: means over groups of similar requests. */
export class MeanLengthPredictor implements LengthPredictor {
  /** Groups by name, the one that was used longest ago first. */
  readonly #groups = new Map<string, Group>();

  /** Number of groups. */
  get size(): number {
    return this.#groups.size;
  }

  predict(features: LengthFeatures): number {
    const { maxTokens } = features;
    for (const name of groupsOf(features)) {
      const group = this.#groups.get(name);
      if (!group || group.numAnswers < MIN_ANSWERS) continue;
      // While all answers were cut, a further one is expected to be.
      const mean = group.numEnds > 0 ? group.tokens / group.numEnds : Infinity;
      return Math.min(mean, maxTokens);
    }
    return Math.min(UNKNOWN_TOKENS, maxTokens);
  }

  learn(features: LengthFeatures, outputTokens: number, isCut: boolean): void {
    for (const name of groupsOf(features)) {
      const known = this.#groups.get(name);
      const group = known ?? { numAnswers: 0, tokens: 0, numEnds: 0 };
      group.numAnswers++;
      group.tokens = KEPT * group.tokens + outputTokens;
      group.numEnds = KEPT * group.numEnds + (isCut ? 0 : 1);
      if (known) this.#groups.delete(name);
      this.#groups.set(name, group);
    }
    if (this.#groups.size <= MAX_GROUPS) return;
    // Many at once: the start of a map is found slowly after deleted entries.
    for (const oldest of this.#groups.keys()) {
      if (this.#groups.size <= MAX_GROUPS - NUM_FORGOTTEN) return;
      this.#groups.delete(oldest);
    }
  }
}

/** Returns the names of a request's groups, the narrowest first. */
function groupsOf({ tenant, kind, template, promptTokens }: LengthFeatures): string[] {
  const bucket = Math.floor(Math.log(Math.max(1, promptTokens)) / Math.log(BUCKET_BASE));
  const groups = [['tenant kind length', tenant, kind, bucket], ['kind length', kind, bucket], ['kind', kind], ['all']];
  const narrow = [
    ['template length', tenant, kind, template, bucket],
    ['template', tenant, kind, template],
  ];
  return [...(template === '' ? [] : narrow), ...groups].map((parts) => parts.join('\n'));
}
