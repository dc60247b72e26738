/** Grammars that were opened, by their text: their ids, and which of them are refused. */
import { Failure } from '../../base/failure.ts';
import { SharedRecent } from '../../base/shared_recent.ts';

/** Grammars that are remembered (P1), and characters of their texts. */
const MAX_GRAMMARS = 256;
const MAX_CHARACTERS = 8 << 20;
/** A grammar that so many threads died of is refused. */
const MAX_DEATHS = 2;
/** Milliseconds after which a grammar that took too much CPU time may try again: that differs a little from run to run. */
const SPENT_MS = 60_000;

/** A grammar by its text. */
export class Grammar {
  readonly id: number;
  readonly ebnf: string;
  /** Whether a trial has found that it can be used. */
  isTried = false;
  #numDeaths = 0;
  #refusal: { readonly message: string; readonly untilMs: number } | undefined;

  constructor(id: number, ebnf: string) {
    this.id = id;
    this.ebnf = ebnf;
  }

  /** @throws Failure `invalid_request` when the grammar is refused now */
  check(nowMs: number): void {
    if (this.#refusal && nowMs < this.#refusal.untilMs) throw new Failure('invalid_request', this.#refusal.message);
  }

  /** Refuses the grammar from now on, with the library's reason. */
  refuse(reason: string): void {
    this.#refusal = { message: `the grammar cannot be used: ${reason}`, untilMs: Infinity };
  }

  /** Refuses the grammar for a while, because its compile took over `cpuMs` of CPU time. */
  refuseSpent(cpuMs: number, nowMs: number): void {
    const message = `the grammar is not compiled after ${cpuMs / 1_000} s of CPU time: use shorter repetitions, fewer optional parts or a smaller schema`;
    this.#refusal = { message, untilMs: nowMs + SPENT_MS };
  }

  /** Counts a thread that died while it worked on this grammar. */
  died(why: string): void {
    if (++this.#numDeaths >= MAX_DEATHS) this.refuse(`it ends the thread that follows it (${why})`);
  }
}

/** Grammars by their text. */
export class Grammars {
  readonly #byText = new SharedRecent<Grammar>(MAX_GRAMMARS, MAX_CHARACTERS);
  #nextId = 1;

  /** Returns the grammar of a text, a new one when it is not remembered. Those of the user with the most are forgotten first. */
  of(ebnf: string, user = ''): Grammar {
    const known = this.#byText.get(ebnf, user);
    if (known) return known;
    const grammar = new Grammar(this.#nextId++, ebnf);
    this.#byText.set(ebnf, grammar, ebnf.length, user);
    return grammar;
  }
}
