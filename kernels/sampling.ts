/**
 * Definition of sampling: all arithmetic after the first multiplication is in integers, so that every device samples the same token
 * (E2). A device that samples by itself agrees with this definition bit for bit; where none can, the engine samples with this code.
 *
 *   logit ─► fixed-point logit: truncated to 2^-20 ─► + bias ─► × repetition ─► − frequency · count, − presence
 *     greedy: the highest fixed-point logit, of equal ones the highest logit, of equal ones the smallest id
 *     else:   log2 weights below the highest fixed-point logit, 2^-20 ─► weight, 2^31 for the highest ─► min_p ─► top_k ─► top_p
 *             ─► by ascending id, the first whose running sum is beyond ⌊random · sum / 2^64⌋
 *
 * top_k and top_p keep a head of the order by descending weight, then ascending id. A token whose logit is -Infinity, that is
 * forbidden or whose weight rounds to 0 is never sampled; +Infinity is the highest fixed-point logit. A row that has a NaN anywhere
 * yields NO_TOKEN.
 */

/** Fixed point of fixed-point logits. */
const FIXED_LOGIT_ONE = 2 ** 20;
/** Fixed-point logits are clamped to ± this value; the sum of two of them fits 32 bits. */
const FIXED_LOGIT_LIMIT = 1_023 * FIXED_LOGIT_ONE;
/** Fixed-point logit of a token that must not be sampled; as a bias, forbids the token. */
export const FORBIDDEN = -(2 ** 31);
/** Result of a sample when the row has a NaN or no token can be sampled. */
export const NO_TOKEN = 0xffffffff;
/** Bit of a token's count word: the token is in the prompt. The bits below count its occurrences in the output. */
export const IN_PROMPT = 0x80000000;

/** The weight of the highest fixed-point logit. */
const WEIGHT_ONE = 2 ** 31;
const LOG2_WEIGHT = 2 ** 20;
/** Distance below the highest log2 weight, in powers of two, from which a weight counts as 0. */
const MAX_LOG2_WEIGHTS = 32;
/** Bits of a mantissa: a fixed-point logit's product with one is exact in a double. */
const MANTISSA_BITS = 21;
const MAX_SHIFT = 52;
/** Bits of a log2 weight below the 7 fraction bits that index exp2Table; they interpolate between two entries. */
const REST_BITS = 13;
const REST_MASK = 2 ** REST_BITS - 1;
/**
 * Slope of the chord between two entries of exp2Table: each unit of the REST_BITS lowers the factor, 2^16 at first, by this many
 * 2^-20.
 */
const REST_SLOPE = 45_304;

/** Weights 2^(31 - i / 128), rounded: 128 entries per power of two below the highest weight. */
export const exp2Table = Uint32Array.from({ length: MAX_LOG2_WEIGHTS * 128 }, (_, i) =>
  Math.round(2 ** (31 - i / 128)),
);

/** A factor as an integer fraction: x times the factor is ⌊x · mantissa / 2^shift⌋, exact in a double for x up to 2^31. */
export interface Scale {
  readonly mantissa: number;
  readonly shift: number;
}

/** Returns the scale nearest to `value`, which must be above 0; from 2^21 on the result is 2^21 - 1. */
export function scaleOf(value: number): Scale {
  const shift = MANTISSA_BITS - 1 - Math.floor(Math.log2(value));
  if (shift < 0) return { mantissa: 2 ** MANTISSA_BITS - 1, shift: 0 };
  const least = Math.min(shift, MAX_SHIFT);
  return { mantissa: Math.min(Math.round(value * 2 ** least), 2 ** MANTISSA_BITS - 1), shift: least };
}

function scaled(value: number, { mantissa, shift }: Scale): number {
  return Math.floor(value * mantissa * 2 ** -shift);
}

/** Returns a value in logits as a fixed-point logit: truncated, and clamped to ± FIXED_LOGIT_LIMIT. */
export function fixedLogitOf(logits: number): number {
  return Math.trunc(Math.max(-FIXED_LOGIT_LIMIT, Math.min(FIXED_LOGIT_LIMIT, logits * FIXED_LOGIT_ONE)));
}

/** How a token is sampled; numbers are integers. */
export interface SampleParams {
  /** From fixed-point logits to log2 weights; undefined is greedy. */
  readonly log2Scale: Scale | undefined;
  /** Weights below are not sampled; at least 1. */
  readonly minWeight: number;
  /** Tokens kept; 0 is all. */
  readonly topK: number;
  /** Share of the sum of weights that the kept tokens must reach, in units of 2^-32; 0 keeps all tokens. */
  readonly topP: number;
  /** Random number of 64 bits for this sample, as two u32. */
  readonly random: readonly [high: number, low: number];
  readonly penalties: Penalties | undefined;
}

/** Penalties on the fixed-point logits of tokens that have already occurred. */
export interface Penalties {
  /** Factors for tokens in the prompt or the output: `above` for fixed-point logits above 0, `below` for the others. */
  readonly repetition: { readonly above: Scale; readonly below: Scale };
  /** Amounts subtracted from the fixed-point logit of a token in the output: `presence` once, `frequency` once per occurrence. */
  readonly presence: number;
  readonly frequency: number;
  /**
   * Maximum occurrences that the frequency penalty counts: up to this many, their product with `frequency` stays within the limit of
   * fixed-point logits and fits 32 bits.
   */
  readonly maxCount: number;
}

/** State of a sequence that changes its next sample; `bias` and `counts` have one value per token of the vocabulary. */
export interface LogitState {
  /** Value added to each fixed-point logit, or {@link FORBIDDEN}. */
  readonly bias?: Int32Array | undefined;
  /** Occurrences of each token in the output, plus {@link IN_PROMPT} for tokens of the prompt. */
  readonly counts?: Uint32Array | undefined;
  /** Mask with one bit per token, least significant first; tokens whose bit is 0 are forbidden. */
  readonly allowed?: Uint32Array | undefined;
}

/** Returns the penalties for a repetition factor, and for `presence` and `frequency` in logits. */
export function penaltiesOf(repetition: number, presence: number, frequency: number): Penalties {
  const each = fixedLogitOf(frequency);
  return {
    repetition: { above: scaleOf(1 / repetition), below: scaleOf(repetition) },
    presence: fixedLogitOf(presence),
    frequency: each,
    maxCount: each === 0 ? 0 : Math.floor(FIXED_LOGIT_LIMIT / Math.abs(each)),
  };
}

/** Returns the distance below the highest fixed-point logit from which a token's weight is 0, so that the token cannot be sampled. */
export function cutoffOf({ mantissa, shift }: Scale): number {
  return Math.min(2 ** 32 - 1, Math.ceil((MAX_LOG2_WEIGHTS * LOG2_WEIGHT * 2 ** shift) / mantissa));
}

/** Bits of an f32 as an integer that orders as the numbers do, -0 before 0. */
function orderOf(bits: number): number {
  return bits ^ ((bits >> 31) & 0x7fffffff);
}

/** Samples tokens by the definition in this file's header, for one vocabulary; keeps arrays for the logits and weights of a row. */
export class Sampler {
  readonly #fixedLogits: Int32Array;
  /** Ids, ascending, of the tokens that can be sampled, and their weights; the first #count entries are valid. */
  readonly #ids: Uint32Array;
  readonly #weights: Uint32Array;
  #count = 0;
  readonly #bins = new Float64Array(2_048);

  constructor(vocab: number) {
    this.#fixedLogits = new Int32Array(vocab);
    this.#ids = new Uint32Array(vocab);
    this.#weights = new Uint32Array(vocab);
  }

  /** Samples a token from `logits`, one value per token. Returns the token's id, or {@link NO_TOKEN}. */
  sample(logits: Float32Array, sample: SampleParams, state: LogitState = {}): number {
    const highest = this.#fixedLogit(logits, sample.penalties, state);
    if (highest === FORBIDDEN) return NO_TOKEN;
    if (!sample.log2Scale) return this.#best(logits, highest);
    this.#weigh(highest, sample.log2Scale, sample.minWeight);
    const { from, ties, sum } = this.#keep(sample);
    const [high, low] = sample.random;
    const target = Number((((BigInt(high) << 32n) | BigInt(low)) * BigInt(sum)) >> 64n);
    const weights = this.#weights;
    let [running, numTies] = [0, 0];
    for (let i = 0; i < this.#count; i++) {
      const weight = weights[i]!;
      if (weight < from || (weight === from && ++numTies > ties)) continue;
      running += weight;
      if (running > target) return this.#ids[i]!;
    }
    return NO_TOKEN;
  }

  /** Fills the fixed-point logits and returns the highest; {@link FORBIDDEN} when nothing can be sampled. */
  #fixedLogit(logits: Float32Array, penalties: Penalties | undefined, { bias, counts, allowed }: LogitState): number {
    const fixedLogits = this.#fixedLogits;
    const least = -FIXED_LOGIT_LIMIT;
    let highest = FORBIDDEN;
    for (let id = 0; id < fixedLogits.length; id++) {
      const value = logits[id]! * FIXED_LOGIT_ONE;
      // A NaN fails both comparisons; the check after this expression catches it.
      const fixedLogit =
        value < FIXED_LOGIT_LIMIT
          ? value > least
            ? value | 0
            : value === -Infinity
              ? FORBIDDEN
              : least
          : FIXED_LOGIT_LIMIT;
      if (value !== value) return FORBIDDEN;
      fixedLogits[id] = fixedLogit;
      if (fixedLogit > highest) highest = fixedLogit;
    }
    const isPenalised = penalties !== undefined && counts !== undefined;
    if (!bias && !isPenalised && !allowed) return highest;
    highest = FORBIDDEN;
    for (let id = 0; id < fixedLogits.length; id++) {
      let fixedLogit = fixedLogits[id]!;
      if (fixedLogit === FORBIDDEN) continue;
      const added = bias ? bias[id]! : 0;
      if (added !== 0) fixedLogit = added === FORBIDDEN ? FORBIDDEN : limited(fixedLogit + added);
      if (isPenalised && fixedLogit !== FORBIDDEN && counts[id] !== 0)
        fixedLogit = penalised(fixedLogit, counts[id]!, penalties);
      if (allowed && ((allowed[id >> 5]! >>> (id & 31)) & 1) === 0) fixedLogit = FORBIDDEN;
      fixedLogits[id] = fixedLogit;
      if (fixedLogit > highest) highest = fixedLogit;
    }
    return highest;
  }

  #best(logits: Float32Array, highest: number): number {
    const fixedLogits = this.#fixedLogits;
    const bits = new Int32Array(logits.buffer, logits.byteOffset, logits.length);
    let [winner, order] = [NO_TOKEN, 0];
    for (let id = 0; id < bits.length; id++) {
      if (fixedLogits[id] !== highest) continue;
      const its = orderOf(bits[id]!);
      if (winner === NO_TOKEN || its > order) [winner, order] = [id, its];
    }
    return winner;
  }

  /**
   * Fills #ids and #weights with the tokens that can be sampled. This is the inner loop of host sampling: a power or a division here
   * would cost as much as all the rest.
   */
  #weigh(highest: number, log2Scale: Scale, minWeight: number): void {
    const [fixedLogits, ids, weights] = [this.#fixedLogits, this.#ids, this.#weights];
    const cutoff = cutoffOf(log2Scale);
    const { mantissa } = log2Scale;
    const unit = 2 ** -log2Scale.shift;
    let count = 0;
    for (let id = 0; id < fixedLogits.length; id++) {
      const fixedLogit = fixedLogits[id]!;
      if (fixedLogit === FORBIDDEN || highest - fixedLogit >= cutoff) continue;
      const below = ((highest - fixedLogit) * mantissa * unit) | 0;
      const share = 65_536 - (Math.imul(below & REST_MASK, REST_SLOPE) >>> 20);
      const entry = exp2Table[below >>> REST_BITS]!;
      // ⌊(entry · share + 2^15) / 2^16⌋
      const low = (Math.imul(entry & 0xffff, share) >>> 0) + 0x8000;
      const weight = ((Math.imul(entry >>> 16, share) >>> 0) + Math.floor(low / 65_536)) >>> 0;
      if (weight < minWeight) continue;
      ids[count] = id;
      weights[count++] = weight;
    }
    this.#count = count;
  }

  /** Returns the head that top_k and top_p keep: all weights above `from`, and the first `ties` tokens whose weight equals `from`. */
  #keep({ topK, topP }: SampleParams): Kept {
    let kept: Kept = { from: 0, ties: 0, sum: this.#sumFrom(0) };
    if (topK > 0 && topK < this.#count) kept = this.#head(topK, false);
    if (topP === 0) return kept;
    const limit = Number((BigInt(kept.sum) * BigInt(topP) + 0xffffffffn) >> 32n);
    return this.#head(limit, true);
  }

  /**
   * Returns the smallest head that has `limit` tokens or, with `isSum`, whose weights reach the sum `limit`. The weight at which the
   * head ends is found 11, 11 and 10 bits at a time.
   */
  #head(limit: number, isSum: boolean): Kept {
    const [weights, bins] = [this.#weights, this.#bins];
    let [rest, from] = [limit, 0];
    for (const { shift, bits } of DIGITS) {
      bins.fill(0);
      const mask = 2 ** bits - 1;
      // Bits above the digit, and what they must be.
      const prefixMask = shift === 21 ? 0 : (-1 << (shift + bits)) | 0;
      const prefix = from & prefixMask;
      for (let i = 0; i < this.#count; i++) {
        const weight = weights[i]!;
        if ((weight & prefixMask) === prefix) bins[(weight >>> shift) & mask]! += isSum ? weight : 1;
      }
      let digit = mask;
      while (digit > 0 && bins[digit]! < rest) rest -= bins[digit--]!;
      from = (from | (digit << shift)) >>> 0;
    }
    const ties = isSum ? Math.ceil(rest / from) : rest;
    return { from, ties, sum: this.#sumFrom(from + 1) + ties * from };
  }

  #sumFrom(least: number): number {
    const weights = this.#weights;
    let sum = 0;
    for (let i = 0; i < this.#count; i++) if (weights[i]! >= least) sum += weights[i]!;
    return sum;
  }
}

interface Kept {
  readonly from: number;
  readonly ties: number;
  readonly sum: number;
}

const DIGITS = [
  { shift: 21, bits: 11 },
  { shift: 10, bits: 11 },
  { shift: 0, bits: 10 },
];

function limited(fixedLogit: number): number {
  return Math.max(-FIXED_LOGIT_LIMIT, Math.min(FIXED_LOGIT_LIMIT, fixedLogit));
}

function penalised(fixedLogit: number, word: number, penalties: Penalties): number {
  const { above, below } = penalties.repetition;
  let value =
    fixedLogit > 0
      ? Math.min(FIXED_LOGIT_LIMIT, scaled(fixedLogit, above))
      : -Math.min(FIXED_LOGIT_LIMIT, scaled(-fixedLogit, below));
  const count = word & ~IN_PROMPT;
  if (count > 0) {
    value = limited(value - penalties.frequency * Math.min(count, penalties.maxCount));
    value = limited(value - penalties.presence);
  }
  return value;
}

/** The least weight that `minP` lets through. */
export function minWeightOf(minP: number): number {
  return Math.max(1, Math.ceil(minP * WEIGHT_ONE));
}
