/** An output that follows a grammar: its tokens are kept here, its state is in a thread, and follows from them when the thread is lost. */
import { Failure } from '../../base/failure.ts';
import { ThreadLost } from './grammar_thread.ts';
import type { Grammar } from './grammars.ts';
import type { MaskThread, ServedMask } from './mask_thread.ts';
import type { MaskState } from './mask_matchers.ts';
import type { TokenMask } from './token_mask.ts';

/** Threads in which one step of an output is tried: its grammar is refused before, unless threads end for other reasons. */
export const MAX_TRIES = 4;

/** A state in a thread. */
export interface Seat {
  readonly thread: MaskThread;
  /** Id of the state in its thread. */
  readonly id: number;
  readonly words: Uint32Array;
  readonly state: MaskState;
}

/** Finds threads for outputs. */
export interface Seats {
  /** Opens the state after all tokens of the output. @throws Failure when it cannot be had */
  seat(mask: OpenMask): Promise<Seat>;
  /** The output has ended: its state in a thread can be released. */
  closed(mask: OpenMask): void;
}

/** One open output of a MaskService. */
export class OpenMask implements TokenMask, ServedMask {
  readonly grammar: Grammar;
  readonly endTokens: readonly number[];
  /** Tokens so far. Bounded by the length of the context (P1). */
  readonly output: number[];
  readonly #seats: Seats;
  #seat: Promise<Seat> | undefined;
  #latest: Pick<Seat, 'words' | 'state'> | undefined;
  #isClosed = false;

  constructor(seats: Seats, grammar: Grammar, endTokens: readonly number[], output: readonly number[]) {
    this.#seats = seats;
    this.grammar = grammar;
    this.endTokens = endTokens;
    this.output = [...output];
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  get words(): Uint32Array {
    return this.#opened.words;
  }

  get isComplete(): boolean {
    return this.#opened.state.isComplete;
  }

  get #opened(): Pick<Seat, 'words' | 'state'> {
    if (this.#latest) return this.#latest;
    throw new Error('the output is not open');
  }

  get #opening(): Promise<Seat> {
    if (this.#seat) return this.#seat;
    throw new Error('the output is not open');
  }

  /** Opens the state for the first time. @throws Failure as `MaskService.open` does */
  async start(): Promise<void> {
    this.#seat = this.#seats.seat(this);
    const { words, state } = await this.#seat;
    this.#latest = { words, state };
    refuseStuck(state);
  }

  /** Opens the state again because its thread is lost. */
  reopen(): void {
    this.#seat = this.#seats.seat(this);
    // A failure is that of the next token.
    this.#seat.catch(() => undefined);
  }

  async accept(token: number): Promise<boolean> {
    for (let tries = 0; tries < MAX_TRIES; tries++) {
      this.#refuseClosed();
      const { thread, id, words } = await this.#opening;
      try {
        const state = await thread.accept(id, token);
        this.#refuseClosed();
        if (!state) return false;
        this.output.push(token);
        this.#latest = { words, state };
        refuseStuck(state);
        return true;
      } catch (error) {
        // The thread was lost with the token: by now the output waits for another one.
        if (!(error instanceof ThreadLost)) throw error;
      }
    }
    throw threadsEnded();
  }

  #refuseClosed(): void {
    if (this.#isClosed) throw new Failure('cancelled', 'the output is closed');
  }

  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#seats.closed(this);
    this.#seat?.then(
      ({ thread, id }) => {
        thread.masks.delete(this);
        thread.close(id);
      },
      () => undefined,
    );
  }
}

/** Returns the failure of a step that was tried MAX_TRIES times. The grammar is not to blame: another instance may follow it. */
export function threadsEnded(): Failure {
  return new Failure('unavailable', `the grammar could not be followed: ${MAX_TRIES} threads ended`);
}

function refuseStuck({ isStuck }: MaskState): void {
  if (!isStuck) return;
  throw new Failure('invalid_request', 'no token of the model can continue the text as its grammar requires');
}
