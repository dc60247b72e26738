/**
 * Rules for the text of answers, as grammars: converted on a thread that may be lost, and compiled on trial with a model's vocabulary, so
 * that no instance is given a grammar that it cannot use.
 *
 *   rule ──convert, CONVERT_MS at most──► EBNF ──trial──► kept, as a refusal is
 */
import type { Clock } from '../../../shared/base/clock.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { inTime, LATE } from '../../../shared/base/in_time.ts';
import { Recent } from '../../../shared/base/recent.ts';
import { abortable } from '../../../shared/base/signal.ts';
import type { Thread, Threads } from '../../../shared/base/threads.ts';
import type { TrialCompiler } from '../../../shared/grammar/matcher/trial_compiler.ts';
import type { start, RuleConverter } from './rule_worker.ts';
import type { TextRule } from './text_rule.ts';

/** Milliseconds that the conversion of one rule may take. */
const CONVERT_MS = 1_000;
/** Rules that wait for their conversion (P1). */
const MAX_WAITING = 64;
/** Rules whose grammars are kept, and the characters of all of them (P1). */
const MAX_KEPT = 512;
const MAX_KEPT_CHARACTERS = 8 << 20;

/** Milliseconds after which a rule that took too long may be tried again. */
const LATE_MS = 60_000;

/** Result of a conversion. */
interface Kept {
  readonly value: string | Failure;
  /** Time until which it holds, in ms on the router's clock. */
  readonly untilMs: number;
}

/** Converts rules to EBNF, one after the other. Results are kept. */
export class RuleConversions {
  readonly #threads: Threads;
  readonly #clock: Clock;
  /** EBNF of each kept rule, or why there is none and how long that holds. */
  readonly #kept = new Recent<string, Kept>(MAX_KEPT, MAX_KEPT_CHARACTERS);
  #thread: Promise<Thread<RuleConverter>> | undefined;
  #last: Promise<unknown> = Promise.resolve();
  /** Conversions under way, by rule, in the order of their turns: at most MAX_WAITING (P1). */
  readonly #running = new Map<string, Promise<string>>();

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
    if (kept && this.#clock.nowMs() < kept.untilMs) {
      if (kept.value instanceof Failure) throw kept.value;
      return kept.value;
    }
    return abortable(this.#running.get(key) ?? this.#begin(key, rule), signal, cancelled);
  }

  #begin(key: string, rule: TextRule): Promise<string> {
    if (this.#running.size >= MAX_WAITING)
      throw new Failure('overloaded', `${MAX_WAITING} rules for texts wait to be read: try again later`);
    const conversion = this.#last
      .then(() => this.#inTime(key, rule))
      .finally(() => {
        this.#running.delete(key);
      });
    this.#last = conversion.catch(() => undefined);
    this.#running.set(key, conversion);
    return conversion;
  }

  async #inTime(key: string, rule: TextRule): Promise<string> {
    const thread = await (this.#thread ??= this.#start());
    let why = `it took over ${CONVERT_MS / 1_000} s to read: make it smaller`;
    try {
      const ebnf = await inTime(this.#clock, CONVERT_MS, thread.call('convert', rule));
      if (ebnf !== LATE) return this.#keep(key, ebnf);
    } catch (error) {
      if (error instanceof Failure) throw this.#keep(key, error);
      why = 'it cannot be read: make it smaller, with less nesting';
    }
    this.#thread = undefined;
    void thread.close();
    // The machine may have been busy: another try is worth it after a while.
    throw this.#keep(key, new Failure('invalid_request', why), this.#clock.nowMs() + LATE_MS);
  }

  /** Starts a thread. Its time limits begin when it is there. */
  async #start(): Promise<Thread<RuleConverter>> {
    const url = new URL('./rule_worker.js', import.meta.url);
    const thread = this.#threads.spawn<typeof start>({ url }, undefined, {
      onDeath: () => {
        this.#thread = undefined;
      },
    });
    await thread.call('ready', undefined);
    return thread;
  }

  #keep<T extends string | Failure>(key: string, value: T, untilMs = Infinity): T {
    this.#kept.set(key, { value, untilMs }, key.length + (typeof value === 'string' ? value.length : 0));
    return value;
  }

  /** Ends the thread. */
  async close(): Promise<void> {
    const thread = await this.#thread?.catch(() => undefined);
    await thread?.close();
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

function cancelled(): Failure {
  return new Failure('cancelled', 'the request has ended');
}
