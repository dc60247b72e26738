/**
 * The engine: one loop, three verbs: schedule → submit → settle.
 *
 *   schedule(t + 1) ─► submit(t + 1) ─► settle(t): its tokens, its full blocks
 *
 * A device that computes by itself is given step t + 1 before t has returned: a decode row names "the token that is drawn in t". A stop
 * token, a limit or a cancel is honoured when t settles; what t + 1 then made for the sequence is nobody's, and its blocks go back when
 * t + 1 has settled too. Sequences whose tokens the host draws are not in t + 1.
 *
 * It owns the device and the device blocks. It knows no network and no disk: fetched records come in as bytes in host memory
 * (`deliver`), full blocks go out as bytes in host memory (`exportTo`), and what happened is told to one listener, in order.
 *
 * E1 holds after every step; `checkIntegrity` says so in tests.
 */
import assert from 'node:assert/strict';
import {
  fromSlot,
  type Executable,
  type SampleRequest,
  type SampleResult,
  type Segment,
  type StepExport,
} from '../../kernels/device.ts';
import type { Clock } from '../base/clock.ts';
import type { AnchoredHash, BlockKey, BlockHash } from '../kv/block_key.ts';
import { widestOf, type KvSpec } from '../kv/kv_spec.ts';
import { BlockPool } from './block_pool.ts';
import { DrawBook, promptRequest } from './draw_book.ts';
import { FirstStep } from './first_step.ts';
import { Incoming, type Arrival } from './incoming.ts';
import { reportedToken, type SampledToken } from './sampler.ts';
import { Scheduler } from './scheduler.ts';
import { ROW_UNIT, StepPace, type StepTimes } from './step_pace.ts';
import { Sequence, type Phase, type SequenceRequest } from './sequence.ts';

export interface EngineOptions {
  readonly spec: KvSpec;
  readonly numBlocks: number;
  readonly chunkTokens: number;
  readonly maxNumSeqs: number;
  readonly maxWaiting: number;
  /** A step in which others wait for tokens takes no longer because of a prompt; 0: than two and a half times what it takes without. */
  readonly stepMs: number;
  /** What steps took at the start. */
  readonly firstSteps?: readonly StepTimes[];
}

/** Blocks that leave while a step computes them. */
export interface EarlyExport {
  /** By block; undefined: that one leaves later. */
  readonly outs: readonly (Uint8Array | undefined)[];
  /** The frame's bytes are there, of all of them; in order. */
  readonly onFrame: (frame: number) => void;
  /** The step has settled. */
  readonly onEnd: () => void;
}

/** Where a sequence's first tokens came from and how long each part took; durations in ms. */
export interface SequenceReport {
  readonly cachedTokens: number;
  readonly fetchedTokens: number;
  readonly computedTokens: number;
  /** Submitted until device blocks were taken. */
  readonly queueMs: number;
  /** Until every fetched block was in, or given up. */
  readonly loadMs: number;
  /** Until the first token (decode) or the last block (prefill). */
  readonly computeMs: number;
}

export type FinishReason = 'stop' | 'length';

export interface EngineListener {
  /** `report` comes with a sequence's first token of this engine. */
  onToken(id: number, token: SampledToken, report: SequenceReport | undefined, finish: FinishReason | undefined): void;
  /** Device blocks are taken; a fetching sequence can be delivered to. */
  onAdmitted(id: number): void;
  /** They were taken away again: it waits, and computes or hits what it had. */
  onPreempted(id: number): void;
  /** Of a prefill sequence tokens [0, numReady) have their KV here, as far as rows behind them see it; numRun rows were computed for it. */
  onProgress(id: number, numReady: number, numRun: number): void;
  onPrefilled(id: number, report: SequenceReport): void;
  /** Tokens of the prompt from `position` on, with what was asked of them. */
  onPrompt(id: number, position: number, tokens: readonly SampledToken[]): void;
  /** There was no token to draw: the sequence is gone. */
  onFailed(id: number, message: string): void;
  /** A full block got its name in the device tier: computed here, or fetched from another holder. */
  onStored(hash: AnchoredHash, origin: 'computed' | 'fetched'): void;
  onRemoved(key: BlockKey): void;
  /** A step is given that computes these blocks. */
  onFilling(hashes: readonly AnchoredHash[]): EarlyExport | undefined;
  /** What was told so far is not to wait for the step that runs now: who has device blocks, and who has none any more. */
  onPlanned(): void;
}

/** What a step does for a sequence. */
interface Part {
  readonly sequence: Sequence;
  /** Tokens [start, start + count) are computed; with blocks that were delivered behind them it has those up to `after`. */
  readonly start: number;
  readonly count: number;
  readonly after: number;
  /** Positions of tokens of the prompt whose log-probabilities are asked for: [start, end). */
  readonly prompt: { readonly start: number; readonly end: number };
  /** The position of the token that is drawn. */
  readonly drawn: number | undefined;
}

/** A step that the device was given. */
interface Step {
  readonly parts: readonly Part[];
  readonly results: Promise<SampleResult[]>;
  readonly submittedMs: number;
  readonly rows: Pick<StepTimes, 'tokenRows' | 'promptRows'>;
  readonly early: EarlyExport | undefined;
  /** A part of it was computed before it was given: it says nothing about what steps take. */
  readonly isRest: boolean;
}

export class Engine {
  readonly pool: BlockPool;
  readonly #executable: Executable;
  readonly #listener: EngineListener;
  readonly #clock: Clock;
  readonly #scheduler: Scheduler;
  readonly #draws: DrawBook;
  readonly #pace: StepPace;
  readonly #incoming: Incoming;
  readonly #blockSize: number;
  readonly #windows: readonly number[];
  /** Of all layers. */
  readonly #widest: number;
  readonly #firstStep: FirstStep;
  readonly #sequences = new Map<number, Sequence>();
  /** In the order in which the device runs them; at most one more than it takes ahead. */
  readonly #steps: Step[] = [];
  #settledMs = 0;
  #numGiven = 0;
  lastStepMs = 0;
  /** That have settled. */
  numSteps = 0;

  constructor(executable: Executable, options: EngineOptions, listener: EngineListener, clock: Clock) {
    this.#executable = executable;
    this.#listener = listener;
    this.#clock = clock;
    this.pool = new BlockPool(options.numBlocks, (key) => {
      listener.onRemoved(key);
    });
    this.#draws = new DrawBook(executable, options.maxNumSeqs);
    this.#pace = new StepPace(options.stepMs, options.firstSteps);
    const { spec, chunkTokens, maxNumSeqs, maxWaiting } = options;
    const { blockSize } = spec;
    this.#blockSize = blockSize;
    this.#windows = spec.frames.map(({ window }) => window);
    this.#widest = widestOf(this.#windows);
    this.#incoming = new Incoming({
      ...{ executable, pool: this.pool, blockSize, frames: spec.frames },
      onWhole: (block, hash) => {
        this.#seal(block, hash, 'fetched');
      },
    });
    this.#firstStep = new FirstStep(executable, {
      ...{ blockSize, chunkTokens, frames: spec.frames, windows: this.#windows },
      onPart: (sequence) => {
        this.#giveBackRetired(sequence);
      },
    });
    this.#scheduler = new Scheduler(this.pool, { blockSize, chunkTokens, maxNumSeqs, maxWaiting }, (sequence) => {
      this.#draws.close(sequence);
      listener.onPreempted(sequence.request.id);
    });
  }

  get load(): { numRunning: number; numWaiting: number; numPreemptions: number } {
    const { numHeld, numWaiting, numPreemptions } = this.#scheduler;
    return { numRunning: numHeld, numWaiting, numPreemptions };
  }

  /** @throws Failure `overloaded` or `context_too_long`. */
  submit(request: SequenceRequest): void {
    assert(request.tokens.length > 0, 'a sequence has at least one token');
    const sequence = new Sequence(request, this.#blockSize, this.#clock.nowMs());
    this.#scheduler.submit(sequence);
    this.#sequences.set(request.id, sequence);
  }

  /** Forgets a sequence; an unknown id was finished already. */
  cancel(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    this.#scheduler.remove(sequence);
    this.#draws.close(sequence);
    this.#sequences.delete(id);
  }

  /** Deliveries are put into one that is loading; one that waits has no device blocks yet. Undefined: it is unknown, or finished. */
  phaseOf(id: number): Phase['kind'] | undefined {
    return this.#sequences.get(id)?.phase.kind;
  }

  /** Puts verified blocks in; those of a sequence that is not loading are ignored. */
  async deliver(id: number, arrivals: readonly Arrival[]): Promise<void> {
    const sequence = this.#sequences.get(id);
    if (sequence?.phase.kind === 'loading') await this.#incoming.put(sequence, arrivals);
  }

  /** No more blocks will come: compute what is left. */
  proceed(id: number): void {
    const sequence = this.#sequences.get(id);
    if (!sequence) return;
    sequence.isFetching = false;
    if (sequence.phase.kind !== 'loading') return;
    sequence.passUnseen(this.#blockSize, this.#windows);
    sequence.phase = { kind: 'running', blocks: sequence.phase.blocks };
  }

  /** Blocks' KV into their `out`s; says for each whether the pool held it. */
  async exportTo(wanted: readonly { readonly hash: BlockHash; readonly out: Uint8Array }[]): Promise<boolean[]> {
    const found = wanted.map(({ hash, out }) => ({ block: this.pool.find(hash), out }));
    const held = found.flatMap(({ block, out }) => (block === undefined ? [] : [{ block, out }]));
    const blocks = held.map(({ block }) => block);
    for (const block of blocks) this.pool.reference(block);
    if (held.length > 0) {
      await this.#executable.exportBlocks(
        blocks,
        held.map(({ out }) => out),
      );
    }
    this.pool.release(blocks);
    return found.map(({ block }) => block !== undefined);
  }

  /** Gives the device what it can take, and settles the oldest step when it can take no more. False when there was nothing to do. */
  async step(): Promise<boolean> {
    const isIdle = this.#steps.length === 0;
    const { work, admitted, isShort } = this.#scheduler.schedule({
      promptRows: (tokenRows) =>
        Math.min(this.#pace.promptRows(tokenRows), Math.max(ROW_UNIT, this.#executable.maxRowsNow - tokenRows)),
      isIdle,
      mayPlan: (sequence) => this.#draws.mayPlan(sequence),
      mayDraw: this.#draws.turns(),
    });
    const nowMs = this.#clock.nowMs();
    for (const sequence of admitted) this.#noteAdmission(sequence, nowMs);
    for (const sequence of work) sequence.readyMs ??= nowMs;
    // Those who have blocks wait a step too: then somebody can be preempted.
    const hasSubmitted = work.length > 0 && !(isShort && !isIdle);
    if (hasSubmitted) {
      this.#listener.onPlanned();
      this.#submit(work, nowMs);
    }
    if (this.#steps.length > this.#executable.numAhead || (!hasSubmitted && this.#steps.length > 0)) {
      await this.#settle();
      return true;
    }
    if (this.#finishIdlePrefills() || hasSubmitted || admitted.length > 0) return true;
    return this.#firstStep.advance(this.#sequences.values());
  }

  /** Settles every step that the device was given. */
  async drain(): Promise<void> {
    while (this.#steps.length > 0) await this.#settle();
  }

  #noteAdmission(sequence: Sequence, nowMs: number): void {
    this.#listener.onAdmitted(sequence.request.id);
    if (sequence.admittedMs !== undefined) return;
    sequence.admittedMs = nowMs;
    sequence.numCached = sequence.numComputed;
  }

  #submit(work: readonly Sequence[], nowMs: number): void {
    const blockSize = this.#blockSize;
    this.#numGiven++;
    const part = this.#firstStep.restOf(work);
    const filled: { readonly block: number; readonly hash: AnchoredHash }[] = [];
    const batch: Segment[] = [];
    const parts = work.map((sequence): Part => {
      const { numPlanned: count, numSubmitted: start, tokens, length } = sequence;
      const end = start + count;
      const isDrawn = sequence.drawsAt(end);
      const prompt = promptOf(sequence, start, end);
      const samples: SampleRequest[] = [];
      for (let at = prompt.start; at < prompt.end; at++)
        samples.push(promptRequest(at - 1 - start, tokens[at]!, sequence.request.promptLogprobs?.numTop ?? 0));
      if (isDrawn) samples.push(this.#draws.request(sequence, length, count - 1));
      const known = tokens.slice(start, end);
      // The last one is drawn by the step before.
      if (known.length < count) known.push(fromSlot(this.#draws.slotOf(sequence)));
      batch.push({ tokens: known, start, blockTable: sequence.blocks, ...(samples.length > 0 ? { samples } : {}) });
      for (let index = Math.floor(start / blockSize); index < Math.floor(end / blockSize); index++) {
        const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
        if (block !== undefined && hash) filled.push({ block, hash });
      }
      sequence.numSubmitted = end;
      sequence.numInFlight++;
      sequence.lastStep = this.#numGiven;
      if (isDrawn) sequence.numPending++;
      sequence.passDelivered(blockSize);
      return { sequence, start, count, after: sequence.numSubmitted, prompt, drawn: isDrawn ? length : undefined };
    });
    // Of a step that was begun some layers are past already: its blocks leave when it is done.
    const early = filled.length > 0 && !part ? this.#listener.onFilling(filled.map(({ hash }) => hash)) : undefined;
    const results = this.#executable.run(batch, { part, exports: early && exportOf(early, filled) });
    // Whoever settles it hears of a failure; nobody may until then.
    results.catch(() => undefined);
    const tokenRows = parts.filter(({ count, drawn }) => count === 1 && drawn !== undefined).length;
    const promptRows = parts.reduce((sum, { count }) => sum + count, -tokenRows);
    const rows = { tokenRows, promptRows };
    this.#steps.push({ parts, results, submittedMs: nowMs, rows, early, isRest: part !== undefined });
  }

  /** The oldest step. */
  async #settle(): Promise<void> {
    const step = this.#steps[0];
    assert(step, 'a step that was submitted');
    const results = await step.results;
    this.#steps.shift();
    const nowMs = this.#clock.nowMs();
    this.lastStepMs = nowMs - Math.max(step.submittedMs, this.#settledMs);
    this.#settledMs = nowMs;
    if (!step.isRest) this.#pace.took({ ...step.rows, ms: this.lastStepMs });
    this.numSteps++;
    let next = 0;
    for (const part of step.parts) {
      const { sequence, drawn, prompt } = part;
      const rows = results.slice(next, next + prompt.end - prompt.start);
      next += rows.length;
      const result = drawn === undefined ? undefined : results[next++];
      sequence.numInFlight--;
      // Cancelled or finished while the device computed: its token is nobody's, and no step touches its blocks any more.
      if (this.#sequences.get(sequence.request.id) !== sequence) {
        this.#giveBackRetired(sequence);
        continue;
      }
      this.#advance(part);
      if (rows.length > 0) this.#tellPrompt(part, rows);
      if (drawn === undefined || !result) continue;
      sequence.numPending--;
      const sampled = this.#draws.take(sequence, drawn, result);
      if (sampled) this.#take(sequence, sampled);
      else this.#fail(sequence);
    }
    step.early?.onEnd();
    this.#finishIdlePrefills();
  }

  /** Of a sequence that has ended, when no step touches them any more. */
  #giveBackRetired(sequence: Sequence): void {
    if (sequence.numInFlight > 0 || sequence.isBeginning) return;
    this.pool.release(sequence.retired);
    sequence.retired = [];
  }

  #tellPrompt({ sequence, prompt }: Part, rows: readonly SampleResult[]): void {
    const { request, tokens } = sequence;
    const numTop = request.promptLogprobs?.numTop ?? 0;
    const told = rows.map((row, i) => reportedToken(numTop, tokens[prompt.start + i]!, row.askedLogits[0]!, row));
    sequence.promptNext = prompt.end;
    this.#listener.onPrompt(request.id, prompt.start, told);
  }

  #fail({ request }: Sequence): void {
    this.cancel(request.id);
    this.#listener.onFailed(
      request.id,
      'no token can be drawn: a logit of the model is no number, or every token is forbidden',
    );
  }

  /** Counts computed tokens and names the blocks that became full. */
  #advance({ sequence, start, count, after }: Part): void {
    const blockSize = this.#blockSize;
    const firstBlock = Math.floor(start / blockSize);
    const lastBlock = Math.floor((start + count) / blockSize);
    sequence.numComputed = after;
    sequence.numRun += count;
    sequence.chain.extend(sequence.tokens);
    for (let index = firstBlock; index < lastBlock; index++) {
      const [block, hash] = [sequence.blocks[index], sequence.chain.hashes[index]];
      assert(
        block !== undefined && hash,
        `block ${index} of ${sequence.tokens.length} tokens is computed but not named`,
      );
      this.#seal(block, hash, 'computed');
    }
    // What a prefill computes is there for others to fetch.
    if (this.#widest > 0 && sequence.request.kind === 'decode')
      this.pool.release(sequence.letGo(this.#widest, blockSize), 0);
    if (sequence.request.kind === 'prefill') {
      this.#listener.onProgress(sequence.request.id, sequence.numComputed, sequence.numRun);
    }
  }

  #seal(block: number, hash: AnchoredHash, origin: 'computed' | 'fetched'): void {
    if (this.pool.seal(block, hash)) this.#listener.onStored(hash, origin);
  }

  #take(sequence: Sequence, sampled: SampledToken): void {
    const { id, maxLength, stopTokenIds, tokens } = sequence.request;
    const isFirst = sequence.tokens.length === tokens.length;
    sequence.tokens.push(sampled.token);
    const finish = stopTokenIds.includes(sampled.token)
      ? 'stop'
      : sequence.tokens.length >= maxLength
        ? 'length'
        : undefined;
    this.#listener.onToken(id, sampled, isFirst ? this.#report(sequence) : undefined, finish);
    if (finish) this.cancel(id);
  }

  /** A prefill sequence may be complete without any computing: everything was hit or fetched. True when blocks came free so. */
  #finishIdlePrefills(): boolean {
    let hasFinished = false;
    // Whoever is done is taken out of the map, which goes on with the next one.
    for (const sequence of this.#sequences.values()) {
      if (sequence.request.kind !== 'prefill' || sequence.phase.kind !== 'running') continue;
      if (sequence.numComputed < sequence.target(this.#blockSize)) continue;
      this.#listener.onPrefilled(sequence.request.id, this.#report(sequence));
      this.cancel(sequence.request.id);
      hasFinished = true;
    }
    return hasFinished;
  }

  #report(sequence: Sequence): SequenceReport {
    const nowMs = this.#clock.nowMs();
    const { submittedMs, admittedMs = nowMs, readyMs = nowMs, numCached, numFetched, numRun } = sequence;
    return {
      cachedTokens: numCached,
      fetchedTokens: numFetched,
      computedTokens: numRun,
      queueMs: admittedMs - submittedMs,
      loadMs: readyMs - admittedMs,
      computeMs: nowMs - readyMs,
    };
  }
}

function exportOf({ outs, onFrame }: EarlyExport, filled: readonly { readonly block: number }[]): StepExport {
  const leaving = filled.flatMap(({ block }, i) => {
    const out = outs[i];
    return out ? [{ block, out }] : [];
  });
  return { blocks: leaving.map(({ block }) => block), outs: leaving.map(({ out }) => out), onRange: onFrame };
}

/** Of rows [start, end): the tokens after them that are asked for. */
function promptOf({ promptNext, isReadingPrompt, request }: Sequence, start: number, end: number): Part['prompt'] {
  if (!isReadingPrompt) return { start: 0, end: 0 };
  const first = Math.max(start + 1, promptNext);
  return { start: first, end: Math.max(first, Math.min(end + 1, request.promptLength)) };
}
