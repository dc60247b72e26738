/**
 * Blocks of one attempt's prompt: the prefills that compute them alongside the Decode call, the holders that the decode instance fetches
 * from, and the answers to the blocks that it misses.
 *
 *   round 0 ──missing──► round 1 ──missing──► ...    each with its sources, and a prefill where the conductor chooses one
 */
import { DONE } from '../../../shared/base/signal.ts';
import type { DecodeCall } from '../../../shared/net/decode/decode_stream.ts';
import type { Chosen } from '../../../shared/placement/conductor.ts';
import type { Instance } from '../../../shared/placement/instance.ts';
import type { MissingBlocks, Report, Source } from '../../../shared/protocol/messages.ts';
import type { AttemptMessages } from './attempt_messages.ts';
import type { AttemptOptions } from './attempt_options.ts';
import type { InFlightRequest } from './in_flight_request.ts';
import type { PlacedCall } from './placed_call.ts';
import { runPlacedPrefill, type PlacedPrefill, type PrefillingAttempt } from './placed_prefill.ts';
import type { FullBlocks } from './request_chain.ts';

/** Prefills placed for one attempt; after that the decode instance computes what is left. */
const MAX_PREFILLS = 4;
/**
 * Longest wait, in ms, for a prefill that has sent all its blocks, and so of an answer for its counts: blocks are streamed before the step
 * that computes them is complete.
 */
const REST_MS = 1_000;

/** The attempt whose blocks these are. */
export interface BlocksOfAttempt {
  readonly inFlight: InFlightRequest;
  readonly chosen: Chosen;
  /** Full blocks before the tail of its tokens. */
  readonly blocks: FullBlocks;
  /** Tokens of prompt and output when it began. */
  readonly numTokens: number;
  readonly messages: AttemptMessages;
  /** Its number, from 1. */
  readonly number: number;
}

/** The blocks of one attempt, from the start of its Decode call. */
export class AttemptBlocks {
  readonly #options: AttemptOptions;
  readonly #attempt: BlocksOfAttempt;
  readonly #placed: PlacedCall;
  readonly #call: DecodeCall;
  /** Aborts when no prefill is waited for any more. */
  readonly #ended = new AbortController();
  #numPrefills = 0;
  #numMissing = 0;
  /** Aborts the prefill of this round, once nobody waits for its blocks any more. */
  #unwanted = new AbortController();
  /** Sources that the decode instance fetches blocks from in this round. */
  #sources: readonly Source[];
  /** The prefill of this round, until it has ended. */
  #prefilling: Promise<void> | undefined;
  /** Removes the listeners that `#watchSources` added for the holders of this round. */
  #unwatch: () => void = () => undefined;

  /** Begins the first round, for a Decode call that was started and placed. */
  constructor(options: AttemptOptions, attempt: BlocksOfAttempt, placed: PlacedCall, call: DecodeCall) {
    this.#options = options;
    this.#attempt = attempt;
    this.#placed = placed;
    this.#call = call;
    const { chosen, blocks } = attempt;
    this.#sources = chosen.decodeSources;
    this.#watchSources(chosen.prefillSources);
    if (chosen.prefill) {
      placed.fetch(chosen.decodeSources);
      this.#prefilling = this.#prefillAll(chosen.prefill, chosen);
    } else placed.promise(blocks.keys, chosen.heldTokens, chosen.decodeSources);
  }

  /** Ends what is done for the blocks. */
  end(): void {
    this.#unwatch();
    this.#ended.abort(DONE);
  }

  /** Number of tokens in the full blocks. */
  get #numFull(): number {
    // Two words a key.
    return (this.#attempt.blocks.keys.length / 2) * (this.#options.view.model?.format.blockSize ?? 0);
  }

  /**
   * Ends what is done for the blocks of a finished call, after its last prefill. When all blocks have arrived, the prefill is about to end;
   * aborted now, its last blocks would not stay on its device, and its computed tokens would not be counted. The client already has its last
   * token.
   */
  async finish(report: Report | undefined): Promise<void> {
    this.#unwatch();
    const { clock } = this.#options;
    const { cachedTokens = 0, fetchedTokens = 0 } = report ?? {};
    if (this.#prefilling && !this.#unwanted.signal.aborted && cachedTokens + fetchedTokens >= this.#numFull) {
      const waiting = new AbortController();
      await Promise.race([this.#prefilling, clock.sleep(REST_MS, waiting.signal)]);
      waiting.abort(DONE);
    }
    this.#ended.abort(DONE);
  }

  /** Runs the prefill of a placement, and with it the second one of a pipeline; resolves when the first of these has ended. */
  #prefillAll(instance: Instance, { prefillSources, heldTokens, work, second }: Chosen): Promise<void> {
    const isFirst = this.#numPrefills === 0;
    const expectedTokens = isFirst ? Math.max(0, this.#numFull - this.#attempt.chosen.heldTokens) : 0;
    this.#numPrefills++;
    // Its own, also when the next round has begun by the time that it ends.
    const unwanted = (this.#unwanted = new AbortController());
    const { tokens = 0, patienceMs = 0 } = second ?? {};
    const attempt: PrefillingAttempt = {
      ...this.#options,
      inFlight: this.#attempt.inFlight,
      messages: this.#attempt.messages,
      keys: this.#attempt.blocks.keys,
      number: this.#attempt.number,
      ended: this.#ended.signal,
    };
    const run = (part: PlacedPrefill): Promise<void> => runPlacedPrefill(part, attempt);
    const round = this.#numMissing;
    if (second) {
      // Without it the other one computes all.
      void run({ ...second, work: work.second, heldTokens, expectedTokens: isFirst ? tokens : 0, unwanted });
    }
    return run({
      instance,
      sources: prefillSources,
      work: work.prefill,
      heldTokens,
      patienceMs,
      unwanted,
      onFailed: () => {
        this.#call.giveUp(round);
      },
      expectedTokens: Math.max(0, expectedTokens - tokens),
    });
  }

  /**
   * Ends this round's fetches as soon as one of their holders is lost. A lost holder may only be silent, which the fetching instances
   * would not notice. A prefill that fetches from the lost holder ends with the round: the decode instance may be busy or hang, and
   * would let it wait.
   */
  #watchSources(prefillSources: readonly Source[]): void {
    this.#unwatch();
    const round = this.#numMissing;
    const ofPrefill = new Set(prefillSources.map(({ address }) => address));
    const addresses = new Set([...this.#sources.map(({ address }) => address), ...ofPrefill]);
    const { decode: own } = this.#attempt.chosen;
    const holders = this.#options.view.all().filter((one) => one !== own && addresses.has(one.member.address));
    const giveUp = (): void => {
      this.#call.giveUp(round);
    };
    const giveUpPrefill = (): void => {
      this.#unwanted.abort(DONE);
      giveUp();
    };
    const watched = holders.map(({ lost, member }) => ({
      lost,
      onLost: ofPrefill.has(member.address) ? giveUpPrefill : giveUp,
    }));
    for (const { lost, onLost } of watched) lost.signal.addEventListener('abort', onLost, { once: true });
    this.#unwatch = () => {
      for (const { lost, onLost } of watched) lost.signal.removeEventListener('abort', onLost);
    };
  }

  /** Excludes the holder that should have delivered `block` for the rest of this attempt, unless it is the decode instance. */
  #excludeHolderOf(block: number): void {
    const source = this.#sources.find(({ start, end }) => start <= block && block < end);
    const holder = this.#options.view.all().find(({ member }) => member.address === source?.address);
    if (holder && holder !== this.#attempt.chosen.decode) this.#attempt.inFlight.excluded.unhelpful(holder);
  }

  /**
   * Answers a decode instance that has blocks [0, block) and cannot fetch the next one: sends other sources, with another prefill when
   * the conductor chooses one.
   */
  answerMissing({ block, reason }: MissingBlocks): void {
    const { excluded, trace } = this.#attempt.inFlight;
    const { decode } = this.#attempt.chosen;
    const numTokens = this.#attempt.numTokens;
    this.#numMissing++;
    // Abort the previous round's prefill: no fetch waits for its blocks any more.
    this.#unwanted.abort(DONE);
    this.#excludeHolderOf(block);
    trace.emit({ kind: 'missed', instance: decode.member.name, block, reason });
    const asked = {
      requestId: trace.id,
      numTokens,
      keys: this.#attempt.blocks.keys,
      hashes: this.#attempt.blocks.hashes,
      maxLength: numTokens + 1,
      avoided: excluded,
      decode: { instance: decode, from: block },
    };
    const outcome = this.#numPrefills < MAX_PREFILLS ? this.#options.conductor.decide(asked) : undefined;
    const placement = outcome?.kind === 'place' ? outcome.chosen : undefined;
    if (!placement?.prefill) {
      if (this.#placed.isComputing)
        this.#placed.promise(this.#attempt.blocks.keys, placement?.heldTokens ?? 0, placement?.decodeSources ?? []);
      this.#sources = placement?.decodeSources ?? [];
      this.#watchSources([]);
      this.#call.more({ sources: this.#sources, maxSelfCompute: numTokens });
      return;
    }
    this.#sources = placement.decodeSources;
    this.#watchSources(placement.prefillSources);
    this.#prefilling = this.#prefillAll(placement.prefill, placement);
    this.#call.more({ sources: placement.decodeSources, maxSelfCompute: placement.maxSelfCompute });
  }
}
