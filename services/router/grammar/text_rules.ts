/**
 * Rules for the text of answers, as grammars: converted on a thread that may be lost, and compiled on trial with a model's vocabulary, so
 * that no instance is given a grammar that it cannot use.
 *
 *   rule ──convert, CONVERT_MS at most──► EBNF ──trial──► kept, as a refusal is
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import type { Thread, Threads } from '../../../shared/base/threads.ts';
import type { TrialCompiler } from '../../../shared/grammar/matcher/trial_compiler.ts';
import type { start, RuleConverter } from './rule_worker.ts';
import type { TextRule } from './text_rule.ts';

/** Milliseconds that the conversion of one rule may take. */
const CONVERT_MS = 2_000;
/** Rules that wait for their conversion (P1). */
const MAX_WAITING = 64;
/** Rules whose grammars are kept, and the characters of all of them (P1). */
const MAX_KEPT = 512;
const MAX_KEPT_CHARACTERS = 8 << 20;

/** Converts rules to EBNF, one after the other. Results are kept. */
export class RuleConversions {
  readonly #threads: Threads;
  readonly #clock: Clock;
  /** EBNF of each kept rule, or the reason why there is none; the one used longest ago first. */
  readonly #kept = new Map<string, string | Failure>();
  #keptCharacters = 0;
  #thread: Thread<RuleConverter> | undefined;
  #last: Promise<unknown> = Promise.resolve();
  #numWaiting = 0;

  constructor(threads: Threads, clock: Clock) {
    this.#threads = threads;
    this.#clock = clock;
  }

  /**
   * Returns a rule as EBNF. @throws Failure `invalid_request` with the reason when it cannot be converted, or not in time; `overloaded`
   * when too many wait; `cancelled` when `signal` aborts.
   */
  async convert(rule: TextRule, signal: AbortSignal): Promise<string> {
    // The parameter that states the rule is only for messages.
    const key = JSON.stringify({ ...rule, param: '' });
    const kept = this.#kept.get(key);
    if (kept !== undefined) {
      this.#kept.delete(key);
      this.#kept.set(key, kept);
      if (kept instanceof Failure) throw kept;
      return kept;
    }
    if (this.#numWaiting >= MAX_WAITING)
      throw new Failure('overloaded', `${MAX_WAITING} rules for texts wait to be read: try again later`);
    this.#numWaiting++;
    const converted = this.#last.then(() => {
      if (signal.aborted) throw new Failure('cancelled', 'the request has ended');
      return this.#inTime(rule);
    });
    this.#last = converted.catch(() => undefined);
    try {
      const ebnf = await converted;
      this.#keep(key, ebnf);
      return ebnf;
    } catch (error) {
      if (error instanceof Failure && error.code === 'invalid_request') this.#keep(key, error);
      throw error;
    } finally {
      this.#numWaiting--;
    }
  }

  async #inTime(rule: TextRule): Promise<string> {
    const timer = new AbortController();
    const late = this.#clock.sleep(CONVERT_MS, timer.signal).then(() => undefined);
    const thread = (this.#thread ??= this.#start());
    try {
      const answer = await Promise.race([thread.call('convert', rule), late]);
      if (answer) {
        if ('refused' in answer) throw new Failure('invalid_request', answer.refused);
        return answer.ebnf;
      }
    } catch (error) {
      if (error instanceof Failure) throw error;
      this.#drop(thread);
      throw new Failure('invalid_request', 'it cannot be read: make it smaller, with less nesting', { cause: error });
    } finally {
      timer.abort();
    }
    this.#drop(thread);
    throw new Failure('invalid_request', `it took over ${CONVERT_MS / 1_000} s to read: make it smaller`);
  }

  #start(): Thread<RuleConverter> {
    const url = new URL('./rule_worker.js', import.meta.url);
    const thread = this.#threads.spawn<typeof start>({ url }, undefined, {
      onDeath: () => {
        if (this.#thread === thread) this.#thread = undefined;
      },
    });
    return thread;
  }

  #drop(thread: Thread<RuleConverter>): void {
    if (this.#thread === thread) this.#thread = undefined;
    void thread.close();
  }

  #keep(key: string, value: string | Failure): void {
    const sizeOf = (one: string, kept: string | Failure): number =>
      one.length + (typeof kept === 'string' ? kept.length : 0);
    this.#kept.set(key, value);
    this.#keptCharacters += sizeOf(key, value);
    for (const [oldest, kept] of this.#kept) {
      if (this.#kept.size <= MAX_KEPT && this.#keptCharacters <= MAX_KEPT_CHARACTERS) return;
      this.#kept.delete(oldest);
      this.#keptCharacters -= sizeOf(oldest, kept);
    }
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    await this.#thread?.close();
  }
}

/** Rules for the texts of one model. */
export class TextRules {
  readonly #conversions: RuleConversions;
  readonly #trial: Pick<TrialCompiler, 'check'> | undefined;

  /** `trial` tries a grammar with the model's vocabulary; undefined for a model without a tokenizer, whose rules are refused. */
  constructor(conversions: RuleConversions, trial: Pick<TrialCompiler, 'check'> | undefined) {
    this.#conversions = conversions;
    this.#trial = trial;
  }

  /** Returns a rule as EBNF that compiles with the model's vocabulary. @throws Failure as {@link RuleConversions.convert} and the trial do. */
  async compile(rule: TextRule, signal: AbortSignal): Promise<string> {
    if (!this.#trial) throw new Failure('invalid_request', 'the model has no tokenizer, so its text follows no rule');
    const ebnf = await this.#conversions.convert(rule, signal);
    await this.#trial.check(ebnf, signal);
    return ebnf;
  }
}
