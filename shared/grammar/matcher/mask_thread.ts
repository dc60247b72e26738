/**
 * A grammar thread that serves outputs: calls to it run one at a time, and the tokens of all outputs that are ready go in one call.
 *
 *   accept ─► steps ──┐
 *   close ──► closed ─┴─► one `accept` call ─┐
 *   open ───► opens ────► one `open` call ───┴─► in turns
 */
import type { Grammar } from './grammars.ts';
import type { GrammarThread, ThreadLost } from './grammar_thread.ts';
import type { MaskState, OpenRequest, Refusal } from './mask_matchers.ts';
import { Recent } from '../../base/recent.ts';

/** Compiled grammars that a thread keeps (P1), and characters of their texts. One of eight fields takes half a MiB at 128,000 tokens. */
const MAX_COMPILED = 64;
const MAX_CHARACTERS = 4 << 20;

/** Milliseconds of CPU time for each token that an opened output already has: a token alone takes microseconds. */
const REPLAY_MS = 5;

/** An output to open; `isWanted` says whether its caller is still there when its turn comes. */
export interface Opening extends Pick<OpenRequest, 'id' | 'endTokens' | 'output' | 'words'> {
  readonly grammar: Grammar;
  readonly isWanted: () => boolean;
}

/** An output whose state a thread has. */
export interface ServedMask {
  readonly grammar: Grammar;
  /** Opens the state in another thread, because this one is lost. */
  reopen(): void;
}

interface Waiting<A, R> {
  readonly argument: A;
  readonly resolve: (result: R) => void;
  readonly reject: (error: unknown) => void;
}

type Opened = MaskState | Refusal | undefined;

/** One thread of a MaskService. Its calls fail with ThreadLost once the thread is gone. */
export class MaskThread {
  /** Outputs whose state is in this thread. */
  readonly masks = new Set<ServedMask>();
  readonly #thread: GrammarThread;
  readonly #ready: Promise<unknown>;
  readonly #limits: { readonly compileCpuMs: number; readonly stepCpuMs: number };
  /** Ids of compiled grammars. */
  readonly #compiled = new Recent<number, true>(MAX_COMPILED, MAX_CHARACTERS);
  /** Outputs to open and tokens to accept: at most one of each for an output that is open (P1). */
  readonly #opens: Waiting<Opening, Opened>[] = [];
  #steps: Waiting<{ readonly id: number; readonly token: number }, MaskState | undefined>[] = [];
  #closed: number[] = [];
  #isRunning = false;

  /** @param ready resolves when the thread has its vocabulary */
  constructor(
    thread: GrammarThread,
    ready: Promise<unknown>,
    limits: { readonly compileCpuMs: number; readonly stepCpuMs: number },
  ) {
    this.#thread = thread;
    this.#ready = ready;
    this.#limits = limits;
  }

  get isLost(): boolean {
    return this.#thread.isLost;
  }

  /** Outputs that a call of this thread may delay. */
  get numMasks(): number {
    return this.masks.size + this.#opens.length;
  }

  /** Whether the grammar is compiled here, or will be. */
  knows(grammar: Grammar): boolean {
    return this.#compiled.has(grammar.id) || this.#opens.some(({ argument }) => argument.grammar === grammar);
  }

  /** Opens an output; see `MaskWorker.open`. Undefined also when it is not wanted any more. */
  open(argument: Opening): Promise<Opened> {
    return new Promise((resolve, reject) => {
      this.#opens.push({ argument, resolve, reject });
      void this.#run();
    });
  }

  /** Appends a token to an output; undefined when its grammar does not allow it. */
  accept(id: number, token: number): Promise<MaskState | undefined> {
    return new Promise((resolve, reject) => {
      this.#steps.push({ argument: { id, token }, resolve, reject });
      void this.#run();
    });
  }

  close(id: number): void {
    this.#closed.push(id);
    void this.#run();
  }

  /** Ends the thread because it is of no use any more. Returns the error of all further calls. */
  lose(why: string): ThreadLost {
    return this.#thread.lose(why);
  }

  end(): Promise<void> {
    return this.#thread.close();
  }

  async #run(): Promise<void> {
    if (this.#isRunning) return;
    this.#isRunning = true;
    const failure = await this.#ready.then(
      () => undefined,
      (error: unknown) => ({ error }),
    );
    while (this.#steps.length + this.#closed.length + this.#opens.length > 0) {
      await this.#acceptAll(failure);
      await this.#openNext(failure);
    }
    this.#isRunning = false;
  }

  async #acceptAll(failure: { readonly error: unknown } | undefined): Promise<void> {
    const [steps, closed] = [this.#steps, this.#closed];
    if (steps.length + closed.length === 0) return;
    this.#steps = [];
    this.#closed = [];
    try {
      if (failure) throw failure.error;
      const argument = { closed, steps: steps.map((step) => step.argument) };
      const cpuMs = this.#limits.stepCpuMs * Math.max(1, steps.length);
      const states = await this.#thread.call('accept', argument, cpuMs);
      steps.forEach(({ resolve }, i) => {
        resolve(states[i]);
      });
    } catch (error) {
      for (const { reject } of steps) reject(error);
    }
  }

  async #openNext(failure: { readonly error: unknown } | undefined): Promise<void> {
    const next = this.#opens[0];
    if (!next) return;
    const { grammar, isWanted, ...output } = next.argument;
    try {
      if (failure) throw failure.error;
      next.resolve(isWanted() ? await this.#open(grammar, output) : undefined);
    } catch (error) {
      next.reject(error);
    } finally {
      // Only now: until it is open it counts as one that this thread serves.
      this.#opens.shift();
    }
  }

  async #open(grammar: Grammar, output: Pick<OpenRequest, 'id' | 'endTokens' | 'output' | 'words'>): Promise<Opened> {
    const { id, ebnf } = grammar;
    const { compileCpuMs, stepCpuMs } = this.#limits;
    const replayMs = output.output.length * REPLAY_MS;
    if (this.#compiled.get(id)) {
      const known = { ...output, grammar: id, ebnf: undefined, drop: [] };
      return this.#thread.call('open', known, stepCpuMs + replayMs);
    }
    const drop = this.#compiled.set(id, true, ebnf.length);
    try {
      return await this.#thread.call('open', { ...output, grammar: id, ebnf, drop }, compileCpuMs + replayMs);
    } catch (error) {
      // The text was refused: the thread, if it is still there, does not have it.
      this.#compiled.delete(id);
      throw error;
    }
  }
}
