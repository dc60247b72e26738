/**
 * Who draws where: each sequence that holds device blocks has a slot of the device for its tokens, and pages for bias and counts when it
 * needs them and there are any. Without pages, and for rows that a device does not draw from, the host draws by the definition: from the
 * full row, a few such in a step (P1), and the sequence waits for its token before it goes on.
 */
import assert from 'node:assert/strict';
import {
  MAX_FULL_ROWS,
  type Executable,
  type RowDrawer,
  type SampleRequest,
  type SampleResult,
} from '../../kernels/device.ts';
import { NO_TOKEN } from '../../kernels/draw.ts';
import type { SampledMessage } from '../protocol/messages.ts';
import { DrawMemory, Draws, numCandidatesOf, sampledToken } from './sampler.ts';
import type { Sequence } from './sequence.ts';
import type { Candidate, DrawnBy } from './step_plan.ts';

const NO_TOKENS: readonly number[] = [];
/** Sequences whose tokens the host draws, in one step. */
export const MAX_HOST_DRAWS = MAX_FULL_ROWS;

interface Entry {
  readonly draws: Draws;
  readonly slot: number;
  readonly pages: { readonly biasPage?: number; readonly countsPage?: number };
  /** Where the pages are the device's, they are not kept here too. */
  readonly memory: DrawMemory;
  readonly isOnDevice: boolean;
}

export class DrawBook {
  readonly #executable: Executable;
  readonly #entries = new Map<Sequence, Entry>();
  readonly #slots: number[];
  readonly #pages: number[];
  /** Open ones whose tokens the host draws. */
  #numDrawnByHost = 0;
  #drawer: RowDrawer | undefined;

  constructor(executable: Executable, numSlots: number) {
    this.#executable = executable;
    this.#slots = Array.from({ length: numSlots }, (_, i) => numSlots - 1 - i);
    this.#pages = Array.from({ length: executable.draws.numPages }, (_, i) => i);
  }

  /** Its device blocks are taken: it may draw. A second call does nothing. */
  open(sequence: Sequence): void {
    if (this.#entries.has(sequence)) return;
    const { request } = sequence.request;
    const { promptLength, stopTokenIds, sampling } = request;
    const tokens = sequence.tokens.view();
    const { vocab } = this.#executable.draws;
    const memory = new DrawMemory(sampling, { tokens, promptLength, stopTokenIds }, vocab);
    const numNeeded = (memory.bias ? 1 : 0) + (memory.counts ? 1 : 0);
    const isOnDevice = numNeeded <= this.#pages.length;
    const page = (values: Int32Array<ArrayBuffer> | Uint32Array<ArrayBuffer>): number => {
      const taken = this.#pages.pop()!;
      this.#executable.writeDrawPage(taken, 0, values);
      return taken;
    };
    const pages = {
      ...(isOnDevice && memory.bias ? { biasPage: page(memory.bias) } : {}),
      ...(isOnDevice && memory.counts ? { countsPage: page(memory.counts) } : {}),
    };
    if (isOnDevice) memory.forget();
    const slot = this.#slots.pop();
    assert(slot !== undefined, 'a sequence that is held has a slot');
    if (!isOnDevice) this.#numDrawnByHost++;
    this.#entries.set(sequence, { draws: new Draws(sampling), slot, pages, memory, isOnDevice });
  }

  /** It is over, or has no device blocks any more. A second call does nothing. */
  close(sequence: Sequence): void {
    const entry = this.#entries.get(sequence);
    if (!entry) return;
    this.#entries.delete(sequence);
    if (!entry.isOnDevice) this.#numDrawnByHost--;
    this.#slots.push(entry.slot);
    for (const page of Object.values(entry.pages)) this.#pages.push(page);
  }

  #entry(sequence: Sequence): Entry {
    const entry = this.#entries.get(sequence);
    assert(entry, 'a sequence that draws is held');
    return entry;
  }

  slotOf(sequence: Sequence): number {
    return this.#entry(sequence).slot;
  }

  /** Those of the sequences whose next rows may be computed, in order, and who draws for each. */
  candidatesOf(sequences: readonly Sequence[]): Candidate<Sequence>[] {
    const ready = sequences.filter((sequence) => this.#mayPlan(sequence));
    const isServed = this.#servedByHost();
    return ready.map((sequence) => ({ sequence, drawnBy: this.#drawnBy(sequence, isServed) }));
  }

  /** Whether its next rows may be computed: its output is not complete, and no token that the host draws is outstanding. */
  #mayPlan(sequence: Sequence): boolean {
    const { kind, request } = sequence.request;
    if (kind === 'prefill') return true;
    if (sequence.length >= request.maxLength) return false;
    this.open(sequence);
    return sequence.cursor.pending === 0 || !this.#isDrawnByHost(sequence);
  }

  #drawnBy(sequence: Sequence, isServed: ReadonlySet<Sequence> | undefined): DrawnBy {
    if (!this.#isDrawnByHost(sequence)) return 'device';
    return isServed?.has(sequence) === false ? 'waits' : 'host';
  }

  /** Sequences that the host draws for in the next step, those first that waited longest; undefined: there is room for all. */
  #servedByHost(): ReadonlySet<Sequence> | undefined {
    if (this.#numDrawnByHost <= MAX_HOST_DRAWS) return undefined;
    const ready = [...this.#entries].flatMap(([sequence, { isOnDevice }]) =>
      !isOnDevice && sequence.length - sequence.cursor.submitted === 1 ? [sequence] : [],
    );
    return new Set(ready.sort((a, b) => a.lastStep - b.lastStep).slice(0, MAX_HOST_DRAWS));
  }

  /** Its next token cannot be drawn before the last one has come back. */
  #isDrawnByHost(sequence: Sequence): boolean {
    return this.#entries.get(sequence)?.isOnDevice === false;
  }

  /** How the token that will have `position` is asked of the device. */
  request(sequence: Sequence, position: number, row: number): SampleRequest {
    const { draws, slot, pages, memory, isOnDevice } = this.#entry(sequence);
    const changes = memory.changesAt(position);
    if (changes.length > 0 && pages.biasPage !== undefined) {
      for (const [token, bias] of changes) this.#executable.writeDrawPage(pages.biasPage, token, Int32Array.of(bias));
    }
    const numCandidates = numCandidatesOf(draws.params);
    if (!isOnDevice) return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: true };
    const draw = draws.requestAt(position, slot, pages.biasPage, pages.countsPage);
    return { row, numCandidates, askedTokens: NO_TOKENS, isFullRowWanted: false, draw };
  }

  /** What came back for it. Undefined: there is nothing that it could be. */
  take(sequence: Sequence, position: number, result: SampleResult): SampledMessage | undefined {
    const { draws, memory, isOnDevice } = this.#entry(sequence);
    const { fullRow } = result;
    let token = result.token;
    let logit = result.tokenLogit;
    if (!isOnDevice) {
      assert(fullRow, 'a row that the host draws from comes back whole');
      this.#drawer ??= this.#executable.rowDrawer();
      token = this.#drawer.draw(fullRow, draws.at(position), memory);
      logit = fullRow[token] ?? NaN;
      if (token !== NO_TOKEN) memory.count(token);
    }
    return token === NO_TOKEN ? undefined : sampledToken(draws.params, position, token, logit, result);
  }
}

/** What is asked of a row whose next token is known: that token's log-probability, and the best ones. */
export function promptRequest(row: number, token: number, numTop: number): SampleRequest {
  return { row, numCandidates: Math.max(1, numTop), askedTokens: [token], isFullRowWanted: false };
}
