/**
 * The default policy: every placement has a price in milliseconds, and the lowest wins. Any instance may compute the prompt and any may
 * generate; a role is a preference with a price. Where the decode instances have another numerics class, prefill instances do not generate.
 *
 *   price = time to the first token + time of the answer                                (this request)
 *         + time that sequences which generate there lose, and prompts that wait there  (the others)
 *         + time beyond what the targets leave
 *
 * All times follow from the instances' own fits of their step times, from their work, and from measured links. An embedding, and a cluster
 * in which an instance says no coefficients, are placed by another policy.
 */
import { matchesOf } from '../fetch_plan.ts';
import { isRejected } from '../overload.ts';
import { inPipeline } from '../pipeline.ts';
import { ablePrefills, eligibleOf, matchOf, placementOf } from '../placement.ts';
import {
  MAX_ALTERNATIVES,
  type Alternative,
  type ClusterSnapshot,
  type Decision,
  type InstanceSnapshot,
  type Policy,
  type Question,
} from '../policy.ts';
import { defaultWeights, partsOf, predictionOf, type PricedPlacement, type PriceWeights } from './priced_placement.ts';
import { Pricing } from './pricing.ts';

/** Name of the policy. */
export const PRICED = 'priced';

/** Settings of the policy. */
export interface PricedOptions {
  /** Decides what cannot be priced. */
  readonly fallback: Policy;
  /** Whether prefill instances only compute prompts and decode instances only generate; otherwise any instance may do any part. */
  readonly isStrict?: boolean;
  /** Tokens of a prompt that a decode instance may compute itself although roles are strict. */
  readonly localTokens?: number;
  /** Whether two instances may compute one prompt in a pipeline. */
  readonly hasPipelines?: boolean;
  readonly weights?: PriceWeights;
}

/** Chooses the placement of the lowest price. */
export class PricedPolicy implements Policy {
  readonly #fallback: Policy;
  readonly #isStrict: boolean;
  readonly #localTokens: number;
  readonly #hasPipelines: boolean;
  readonly #weights: PriceWeights;

  constructor({
    fallback,
    isStrict = false,
    localTokens = 0,
    hasPipelines = false,
    weights = defaultWeights,
  }: PricedOptions) {
    this.#fallback = fallback;
    this.#isStrict = isStrict;
    this.#localTokens = localTokens;
    this.#hasPipelines = hasPipelines;
    this.#weights = weights;
  }

  get usesAnyRole(): boolean {
    return !this.#isStrict;
  }

  decide(question: Question, snapshot: ClusterSnapshot): Decision {
    if (question.isEmbedding) return this.#fallback.decide(question, snapshot);
    const { decode, prefill } = snapshot;
    const members = [...decode, ...prefill];
    const { instances, decision } = eligibleOf(this.#generating(snapshot), question, snapshot);
    const begun = question.decode && members.filter(({ id }) => id === question.decode?.id);
    if (!instances && !begun) return decision;
    const decodes = begun ?? instances ?? [];
    const prefills = ablePrefills(this.#isStrict ? prefill : members, question);
    const silent = [...decodes, ...prefills].find(({ work }) => !work);
    if (silent) return this.#unpriced(question, snapshot, silent);
    // A recurrent state is computed by one instance after the other, never by turns of layers.
    const hasPipelines = this.#hasPipelines && !begun && !snapshot.hasStates;
    const limits = { mostAlone: this.#isStrict ? this.#localTokens : Infinity, hasPipelines };
    const pricing = new Pricing(question, snapshot, this.#weights);
    const most = 1 + MAX_ALTERNATIVES;
    const best = cheapest(pricing.all(decodes, prefills, { most, ...limits }), most);
    const all = (): PricedPlacement[] => pricing.all(decodes, prefills, { most: Infinity, ...limits });
    const chosen = this.#withinTargets(best[0], all, question);
    if (!chosen) return this.#decideUnpriced(question, snapshot);
    const others = best.filter((one) => one !== chosen).slice(0, MAX_ALTERNATIVES);
    return this.#decision(chosen, others, question, snapshot);
  }

  /** Returns the best placement, or the cheapest within the targets where the best one is not and another is. */
  #withinTargets(
    best: PricedPlacement | undefined,
    all: () => readonly PricedPlacement[],
    question: Question,
  ): PricedPlacement | undefined {
    if (!question.targets || !best) return best;
    const isRefused = (one: PricedPlacement): boolean =>
      isRejected(question, predictionOf(one, this.#weights), one.decode.leastGapMs(question.numTokens));
    if (!isRefused(best)) return best;
    return (
      cheapest(
        all().filter((one) => !isRefused(one)),
        1,
      )[0] ?? best
    );
  }

  /** Instances that may generate. */
  #generating({ decode, prefill }: ClusterSnapshot): readonly InstanceSnapshot[] {
    return this.#isStrict ? decode : [...decode, ...prefill.filter(({ mayGenerate }) => mayGenerate)];
  }

  /** Decides by the fallback, for which prefill instances generate where no decode instance can. */
  #decideUnpriced(question: Question, snapshot: ClusterSnapshot): Decision {
    const { instances = [] } = eligibleOf(this.#generating(snapshot), question, snapshot);
    const canGenerate = question.decode !== undefined || instances.some(({ role }) => role === 'decode');
    if (canGenerate) return this.#fallback.decide(question, snapshot);
    const decode = snapshot.prefill.filter(({ mayGenerate }) => mayGenerate);
    return this.#fallback.decide(question, { ...snapshot, decode, prefill: [] });
  }

  /** Places by the fallback, and says why. */
  #unpriced(question: Question, snapshot: ClusterSnapshot, { name }: InstanceSnapshot): Decision {
    const decision = this.#decideUnpriced(question, snapshot);
    if (decision.kind !== 'place') return decision;
    const reason = `no coefficients from ${name}: not placed by price; ${decision.placement.reason}`;
    return { ...decision, placement: { ...decision.placement, reason } };
  }

  #decision(
    best: PricedPlacement,
    others: readonly PricedPlacement[],
    question: Question,
    snapshot: ClusterSnapshot,
  ): Decision {
    const { decode, prefill, second, fetchTo, cachedTokens, priceMs } = best;
    const numCached = Math.floor(cachedTokens / snapshot.blockSize);
    const matches = matchesOf(snapshot.ranges);
    const [parts, prediction] = [partsOf(best), predictionOf(best, this.#weights)];
    const placement = placementOf(decode.instance.id, prefill?.instance, question, snapshot, {
      maxSelfCompute: prefill ? snapshot.blockSize : question.numTokens,
      reason: `${numCached} of ${question.numBlocks} blocks cached; ${whereOf(best)} for ${Math.round(priceMs)} ms, first token in ${Math.round(best.ttftMs)} ms`,
      fetchTo,
    });
    return {
      kind: 'place',
      placement:
        prefill && second && placement.prefill !== undefined
          ? inPipeline(placement, question, snapshot, {
              prefill: prefill.instance,
              second: second.price.instance,
              fetchTo,
              chunkBlocks: second.chunkBlocks,
              patienceMs: second.patienceMs,
            })
          : placement,
      priceMs,
      parts,
      prediction,
      policy: PRICED,
      alternatives: others.map((other): Alternative => ({
        decode: other.decode.instance.id,
        prefill: other.prefill?.instance.id,
        ...(other.second ? { second: other.second.price.instance.id } : {}),
        run: matchOf(other.decode.instance.id, question, matches),
        queueLength: other.decode.instance.queueLength,
        priceMs: other.priceMs,
        parts: partsOf(other),
        prediction: predictionOf(other, this.#weights),
      })),
    };
  }
}

/** Returns the sentence that tells people which instances do which part. */
function whereOf({ decode, prefill, second }: PricedPlacement): string {
  const { name } = decode.instance;
  if (!prefill) return `${name} computes and generates`;
  const computes = second
    ? `${prefill.instance.name} and ${second.price.instance.name} compute by turns`
    : `${prefill.instance.name} computes`;
  return `${computes} and ${name} generates`;
}

/** Returns the `most` placements of the lowest prices, the lowest first; among equals, the first found. */
function cheapest(found: readonly PricedPlacement[], most: number): PricedPlacement[] {
  const best: PricedPlacement[] = [];
  for (const one of found) {
    const last = best[most - 1];
    if (last && one.priceMs >= last.priceMs) continue;
    let at = best.length;
    while (at > 0 && (best[at - 1]?.priceMs ?? 0) > one.priceMs) at--;
    best.splice(at, 0, one);
    if (best.length > most) best.pop();
  }
  return best;
}
