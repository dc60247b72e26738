/** Finds the terminals of a state in text that arrives character by character. */
import type { PatternTerminal, State, Transition } from './output_table.ts';

/** UTF-16 units of a terminal that is a regular expression (P1). */
const MAX_PATTERN = 256;

/** Groups of a regular expression by name. */
export type Groups = Readonly<Record<string, string>>;

/** A character that is part of no terminal, or a terminal; `again` is text after it that is still to be read. */
export type Scanned =
  | { readonly kind: 'text'; readonly char: string; readonly again: string }
  | {
      readonly kind: 'terminal';
      readonly transition: Transition;
      readonly literal: string;
      readonly groups: Groups;
      readonly again: string;
    };

/** Scanner of one answer. */
export class TerminalScanner {
  /** The beginning of a terminal. */
  #partial = '';
  /** A terminal that is a regular expression, once its prefix is there, and the text since. */
  #pattern: { readonly terminal: PatternTerminal; text: string } | undefined;

  /** Whether no text waits for what follows it. */
  get isIdle(): boolean {
    return this.#pattern === undefined && this.#partial === '';
  }

  /** Reads the next character in a state. Returns undefined while it may become part of a terminal. */
  read({ terminals, beginnings }: State, char: string): Scanned | undefined {
    if (this.#pattern) return this.#extend(this.#pattern, char);
    const seen = this.#partial + char;
    const terminal = terminals.get(seen);
    this.#partial = '';
    if (terminal && 'pattern' in terminal) {
      this.#pattern = { terminal, text: seen };
      return this.#match(this.#pattern);
    }
    if (terminal) return { kind: 'terminal', transition: terminal, literal: seen, groups: {}, again: '' };
    if (!beginnings.has(seen)) return textOf(seen);
    this.#partial = seen;
    return undefined;
  }

  /** Returns the text that waits for what does not come; undefined when none does. */
  end(): Scanned | undefined {
    const rest = this.#pattern?.text ?? this.#partial;
    [this.#pattern, this.#partial] = [undefined, ''];
    return rest === '' ? undefined : textOf(rest);
  }

  #extend(at: { readonly terminal: PatternTerminal; text: string }, char: string): Scanned | undefined {
    at.text += char;
    return this.#match(at);
  }

  #match({ terminal, text }: { readonly terminal: PatternTerminal; readonly text: string }): Scanned | undefined {
    const { pattern } = terminal;
    pattern.lastIndex = 0;
    const found = pattern.exec(text);
    if (!found && text.length <= MAX_PATTERN) return undefined;
    this.#pattern = undefined;
    if (!found) return textOf(text);
    const [literal] = found;
    return {
      kind: 'terminal',
      transition: terminal,
      literal,
      groups: found.groups ?? {},
      again: text.slice(literal.length),
    };
  }
}

/** The first character begins no terminal; a later one may. */
function textOf(seen: string): Scanned {
  return { kind: 'text', char: seen.charAt(0), again: seen.slice(1) };
}
