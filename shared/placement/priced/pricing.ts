/**
 * Prices of all placements of one question.
 *
 *   each instance ──computes the prompt──► time to the first token there, time that others lose
 *   TOP of these × TOP of those that generate best ──► pairs; every instance alone ──► price of each
 *   TOP of these, two and two in a pipeline × TOP of those that generate best ──► price of each
 */
import { pairsOf } from '../../protocol/instance_work.ts';
import { matchesOf, type PrefixMatches } from '../fetch_plan.ts';
import { matchOf } from '../placement.ts';
import type { ClusterSnapshot, InstanceSnapshot, PromisedPrefix, Question } from '../policy.ts';
import { FetchPrices } from './fetch_price.ts';
import { InstancePrice } from './instance_price.ts';
import { lowest } from './lowest.ts';
import { pipelinesOf, type ComputedAlone, type PipelineSecond } from './pipeline_price.ts';
import type { PricedPlacement, PriceWeights } from './priced_placement.ts';

/** Instances of each side that are priced in pairs: those whose own prices are lowest. */
const TOP = 8;
/** Wait assumed, in ms, on a device without room where no sequence is expected to end and free enough. */
const NO_ROOM_MS = 600_000;

/** One instance with the prompt computed there, perhaps in a pipeline with a second one. */
type ComputedPrompt = ComputedAlone & { readonly second?: PipelineSecond };

/** One instance with the answer generated there. */
interface GeneratedAnswer {
  readonly price: InstancePrice;
  /** Milliseconds between two tokens while prompts are computed with them, and while none is, with those that generate now. */
  readonly slowMs: number;
  readonly fastMs: number;
  /** Price of what others lose by the answer: sequences that generate there, and prompts that wait. */
  readonly streamsMs: number;
  /** Milliseconds until the device has room. */
  readonly roomMs: number;
}

/** Which placements are priced. */
interface PricedLimits {
  /** Placements on one instance that are returned. */
  readonly most: number;
  /** Tokens of the prompt that one instance may compute alone where another one could. */
  readonly mostAlone?: number;
  /** Whether two instances may compute the prompt in a pipeline. */
  readonly hasPipelines?: boolean;
}

/** Prices the placements of one question. */
export class Pricing {
  readonly #question: Question;
  readonly #snapshot: ClusterSnapshot;
  readonly #weights: PriceWeights;
  readonly #matches: PrefixMatches;
  readonly #promised: ReadonlyMap<string, PromisedPrefix>;
  readonly #fetches: FetchPrices;
  readonly #numBlocksNeeded: number;
  /** Price of a millisecond that one generating sequence loses. */
  readonly #streamsPrice: number;
  /** Price of a millisecond of instance time: weight `queued` × mean number of waiting prompts per instance. */
  #queuedPrice = 0;

  constructor(question: Question, snapshot: ClusterSnapshot, weights: PriceWeights) {
    this.#question = question;
    this.#snapshot = snapshot;
    this.#weights = weights;
    this.#streamsPrice = question.targets?.tbtMs === undefined ? weights.streams : weights.pacedStreams;
    this.#matches = matchesOf(snapshot.ranges);
    this.#promised = new Map(snapshot.promised.map((prefix) => [prefix.id, prefix]));
    this.#fetches = new FetchPrices(snapshot);
    this.#numBlocksNeeded = Math.ceil((question.numTokens + question.outputTokens) / snapshot.blockSize);
  }

  /**
   * Returns the `most` cheapest placements on one instance alone, and the best pairs, in no order. Instances without {@link
   * InstanceSnapshot.work} are left out. In a large cluster only instances that are estimated to be cheap are priced.
   */
  all(
    decodes: readonly InstanceSnapshot[],
    prefills: readonly InstanceSnapshot[],
    { most, mostAlone = Infinity, hasPipelines = false }: PricedLimits,
  ): PricedPlacement[] {
    const prices = pricesOf([...decodes, ...prefills]);
    const numQueued = [...prices.values()].reduce((sum, { work }) => sum + work.prompts.sequences, 0);
    this.#queuedPrice = (this.#weights.queued * numQueued) / Math.max(1, prices.size);
    const priced = (instances: readonly InstanceSnapshot[]): InstancePrice[] =>
      instances.flatMap((instance) => prices.get(instance) ?? []);
    const { numBlocks, outputTokens } = this.#question;
    const answers = priced(decodes).map((price) => this.#generate(price));
    const computed = new Map<InstancePrice, ComputedPrompt>();
    const compute = (price: InstancePrice): ComputedPrompt => {
      let prompt = computed.get(price);
      if (!prompt) computed.set(price, (prompt = this.#compute(price)));
      return prompt;
    };
    const estimateOf = ({ price, fastMs, streamsMs, roomMs }: GeneratedAnswer): number =>
      Math.max(this.#estimate(price), roomMs) + this.#weights.answer * outputTokens * fastMs + streamsMs;
    const alone = lowest(answers, most, estimateOf, (answer) => {
      const prompt = this.#withinLimit(compute(answer.price), prefills.length > 0 ? mostAlone : Infinity);
      if (!prompt) return undefined;
      const item = this.#alone(prompt, answer);
      return { item, cost: item.priceMs };
    });
    const promptOf = (price: InstancePrice): number => this.#estimate(price);
    const nearest = lowest(priced(prefills), TOP, promptOf, (price) => {
      const item = compute(price);
      return { item, cost: item.readyMs + item.lossMs };
    });
    const costOf = (one: GeneratedAnswer): number => this.#answerMs(one, 0) + one.streamsMs;
    // An instance that has all full blocks gets none from another one.
    const receivers = answers.filter(({ price }) => this.#matchOf(price) < numBlocks);
    const fastest = lowest(receivers, TOP, costOf, (item) => ({ item, cost: costOf(item) }));
    const prompts: ComputedPrompt[] = [...nearest, ...(hasPipelines ? this.#pipelines(nearest) : [])];
    const pairs = prompts.flatMap((prompt) =>
      prompt.to >= numBlocks
        ? []
        : fastest
            .filter(({ price }) => price !== prompt.price && price !== prompt.second?.price)
            .map((answer) => this.#pair(prompt, answer)),
    );
    return [...alone, ...pairs];
  }

  #pipelines(computed: readonly ComputedPrompt[]): readonly ComputedPrompt[] {
    return pipelinesOf(computed, {
      question: this.#question,
      blockSize: this.#snapshot.blockSize,
      fetches: this.#fetches,
      queuedPrice: this.#queuedPrice,
    });
  }

  /** Estimates the price of the prompt on an instance, as if all held blocks came over the fastest link, or all were computed. */
  #estimate(price: InstancePrice): number {
    const { numTokens } = this.#question;
    const { blockSize } = this.#snapshot;
    const { id, address } = price.instance;
    const has = Math.max(this.#matchOf(price), this.#promised.get(id)?.end ?? 0);
    const fetch = this.#fetches.leastMs(address, has, price.work.blockBytes);
    const isFetched = fetch.ms < price.rowsMs(fetch.numBlocks * blockSize, 0);
    const from = (isFetched ? Math.max(has, this.#fetches.end) : has) * blockSize;
    const soonestMs = Math.max(price.queueMs, isFetched ? fetch.ms : 0) + price.ownMs(from, numTokens - from);
    return soonestMs + this.#lossMs(price, from);
  }

  /** Time that others lose while the prompt's tokens after `from` are computed on an instance. */
  #lossMs(price: InstancePrice, from: number): number {
    const count = this.#question.numTokens - from;
    const numStreams = price.work.generating.sequences;
    return price.rowsMs(count, pairsOf(from, count)) * (this.#streamsPrice * numStreams + this.#queuedPrice);
  }

  /** Leading blocks that an instance has. */
  #matchOf({ instance }: InstancePrice): number {
    return matchOf(instance.id, this.#question, this.#matches);
  }

  /**
   * Returns the prompt as computed where the instance may compute at most `mostAlone` tokens of its full blocks: it fetches what is held
   * although computing it would be sooner. Undefined where too much is held by nobody.
   */
  #withinLimit(computed: ComputedPrompt, mostAlone: number): ComputedPrompt | undefined {
    const { numTokens, numBlocks } = this.#question;
    // The tail after the full blocks is computed where the answer is generated, however long it is.
    const least = Math.min(numTokens - mostAlone, numBlocks * this.#snapshot.blockSize);
    if (computed.cachedTokens >= least) return computed;
    const fetched = this.#compute(computed.price, least);
    return fetched.cachedTokens >= least && fetched.readyMs < Infinity ? fetched : undefined;
  }

  /** Returns the prompt as computed soonest on an instance; `leastCached`: tokens that are to be there without being computed for it. */
  #compute(price: InstancePrice, leastCached = 0): ComputedPrompt {
    const { numTokens } = this.#question;
    const { blockSize } = this.#snapshot;
    const { id } = price.instance;
    const match = this.#matchOf(price);
    const { end: promised = 0, fetchedTo = 0 } = this.#promised.get(id) ?? {};
    const least = this.#fetches.endOf(match, fetchedTo);
    const {
      to,
      ms: fetchMs,
      computedMs,
    } = this.#fetches.best(price.instance, match, price.work.blockBytes, (end, ms) => {
      // Blocks that an earlier request only fetches are fetched again; blocks that it computes are not.
      if (end < least || (end > least && end <= promised)) return Infinity;
      const from = Math.max(end, promised) * blockSize;
      if (from < leastCached) return Infinity;
      return Math.max(ms, price.queueMs) + price.ownMs(from, numTokens - from);
    });
    const cachedTokens = Math.max(to, promised) * blockSize;
    const lossMs = this.#lossMs(price, cachedTokens);
    const waitMs = Math.max(0, price.queueMs - fetchMs);
    return { price, to, cachedTokens, readyMs: computedMs, waitMs, lossMs };
  }

  #generate(price: InstancePrice): GeneratedAnswer {
    const { numTokens, outputTokens } = this.#question;
    const { generating, coming, step } = price.work;
    const numOthers = generating.sequences + coming.sequences;
    const addedMs = price.addedMs(numTokens);
    // Where nothing generates, prompts run in long steps: the first sequence that generates makes them short.
    const usedMs = addedMs + (numOthers === 0 ? step.constantMs : 0);
    return {
      price,
      slowMs: price.gapMs(numTokens, true),
      fastMs: price.gapMs(numTokens, false),
      streamsMs: outputTokens * (this.#streamsPrice * numOthers * addedMs + this.#queuedPrice * usedMs),
      roomMs: price.roomMs(this.#numBlocksNeeded),
    };
  }

  /** Returns how many tokens after a first one at `startMs` come while prompts are computed with them. */
  #numSlow({ price, slowMs }: GeneratedAnswer, startMs: number): number {
    return Math.min(this.#question.outputTokens, Math.max(0, price.queueMs - startMs) / slowMs);
  }

  /** Price of the answer after a first token at `startMs`. */
  #answerMs(answer: GeneratedAnswer, startMs: number): number {
    const numSlow = this.#numSlow(answer, startMs);
    const lengthMs = numSlow * answer.slowMs + (this.#question.outputTokens - numSlow) * answer.fastMs;
    return this.#weights.answer * lengthMs;
  }

  #alone(prompt: ComputedPrompt, answer: GeneratedAnswer): PricedPlacement {
    const isForeign = answer.price.instance.role === 'prefill';
    return this.#sum(prompt, answer, undefined, prompt.readyMs, prompt.waitMs, isForeign);
  }

  #pair(prompt: ComputedPrompt, answer: GeneratedAnswer): PricedPlacement {
    const { numBlocks } = this.#question;
    const [prefill, decode] = [prompt.price, answer.price];
    const match = this.#matchOf(decode);
    const { blockBytes, step } = decode.work;
    const { address, role } = prefill.instance;
    const bytes = Math.max(0, numBlocks - match) * blockBytes;
    // Blocks are sent as they are computed; those of the last chunk follow the prompt's end.
    const chunkBytes = Math.min(bytes, (prefill.work.chunkTokens / this.#snapshot.blockSize) * blockBytes);
    const { id } = decode.instance;
    const lastMs = this.#fetches.linkMs(address, id, chunkBytes);
    const allMs = this.#fetches.linkMs(address, id, bytes);
    const arrivesMs = Math.max(prompt.readyMs + lastMs, prefill.queueMs + allMs);
    const waitMs = Math.max(0, arrivesMs - Math.max(prompt.readyMs - prompt.waitMs + lastMs, allMs));
    const isForeign = role === 'decode' || decode.instance.role === 'prefill';
    return this.#sum(prompt, answer, prefill, arrivesMs + (decode.pacedMs || step.constantMs), waitMs, isForeign);
  }

  #sum(
    { to, cachedTokens, lossMs, second }: ComputedPrompt,
    answer: GeneratedAnswer,
    prefill: InstancePrice | undefined,
    soonestMs: number,
    waitMs: number,
    isForeign: boolean,
  ): PricedPlacement {
    const { targets, waitedMs, outputTokens } = this.#question;
    const { late, soon, roleMs: foreignMs } = this.#weights;
    const { roomMs, streamsMs, slowMs, fastMs } = answer;
    // A constant instead of Infinity, so that full instances still differ by their queues.
    const ttftMs = roomMs === Infinity ? soonestMs + NO_ROOM_MS : Math.max(soonestMs, roomMs);
    const isSlow = this.#numSlow(answer, ttftMs) > 0.01 * outputTokens;
    // Sequences that end before the first token comes do not slow the answer.
    const tbtMs =
      targets?.tbtMs === undefined
        ? isSlow
          ? slowMs
          : fastMs
        : answer.price.gapMs(this.#question.numTokens, isSlow, ttftMs);
    const answerMs = this.#answerMs(answer, ttftMs);
    const lateMs =
      late *
      (Math.max(0, ttftMs + waitedMs - soon * (targets?.ttftMs ?? Infinity)) +
        outputTokens * Math.max(0, tbtMs - (targets?.tbtMs ?? Infinity)));
    const roleMs = isForeign ? foreignMs : 0;
    return {
      decode: answer.price,
      prefill,
      second: prefill && second,
      fetchTo: to,
      cachedTokens,
      priceMs: ttftMs + answerMs + streamsMs + lossMs + lateMs + roleMs,
      ttftMs,
      waitMs: waitMs + ttftMs - soonestMs,
      answerMs,
      tbtMs,
      streamsMs,
      promptMs: lossMs,
      lateMs,
      roleMs,
    };
  }
}

/** Returns the prices of the instances that say what work they have. */
function pricesOf(instances: readonly InstanceSnapshot[]): Map<InstanceSnapshot, InstancePrice> {
  const prices = new Map<InstanceSnapshot, InstancePrice>();
  for (const instance of instances)
    if (instance.work && !prices.has(instance)) prices.set(instance, new InstancePrice(instance, instance.work));
  return prices;
}
