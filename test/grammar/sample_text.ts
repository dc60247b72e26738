/** Texts of a grammar by random choices, as a model without an opinion would write them. */
import type { Random } from '../../shared/base/random.ts';
import { intersectionOf, type CodePoints, sizeOf } from '../../shared/grammar/code_points.ts';
import type { Expression, Grammar } from '../../shared/grammar/grammar.ts';

/** Characters as models write them; a set that has none of them is sampled whole. */
const COMMON: readonly CodePoints[] = [
  [[0x20, 0x7e]],
  [
    [0x20, 0x7e],
    [0xa0, 0x17f],
    [0x391, 0x3c9],
    [0x4e00, 0x4e40],
    [0x1f600, 0x1f640],
  ],
];
/** Expansions after which the shortest way to an end is taken. */
const MAX_STEPS = 400;

/** Samples texts of one grammar. */
export class TextSampler {
  readonly #grammar: Grammar;
  readonly #random: Random;
  /** The least number of rules within each other that end a rule. */
  readonly #heights = new Map<string, number>();
  #steps = 0;

  constructor(grammar: Grammar, random: Random) {
    this.#grammar = grammar;
    this.#random = random;
    for (let isChanged = true; isChanged;) {
      isChanged = false;
      for (const [name, body] of grammar.rules) {
        const height = 1 + this.#height(body);
        if (height >= (this.#heights.get(name) ?? Infinity)) continue;
        this.#heights.set(name, height);
        isChanged = true;
      }
    }
  }

  #height(expression: Expression): number {
    switch (expression.kind) {
      case 'text':
      case 'special':
      case 'set':
        return 0;
      case 'rule':
        return this.#heights.get(expression.name) ?? Infinity;
      case 'sequence':
        return Math.max(0, ...expression.items.map((item) => this.#height(item)));
      case 'choice':
        return Math.min(Infinity, ...expression.items.map((item) => this.#height(item)));
      case 'repeat':
        return expression.min === 0 ? 0 : this.#height(expression.item);
    }
  }

  /** Returns a text that the grammar matches. */
  sample(): string {
    this.#steps = 0;
    const parts: string[] = [];
    this.#expand({ kind: 'rule', name: this.#grammar.root }, parts);
    return parts.join('');
  }

  #expand(expression: Expression, parts: string[]): void {
    const isEnding = ++this.#steps > MAX_STEPS;
    switch (expression.kind) {
      case 'text':
        parts.push(expression.text);
        return;
      case 'special':
        throw new Error('a text has no special tokens');
      case 'set':
        parts.push(this.#character(expression.set));
        return;
      case 'rule':
        this.#expand(this.#grammar.rules.get(expression.name)!, parts);
        return;
      case 'sequence':
        for (const item of expression.items) this.#expand(item, parts);
        return;
      case 'choice': {
        const heights = expression.items.map((item) => this.#height(item));
        const least = Math.min(...heights);
        const candidates = expression.items.filter((_, i) =>
          isEnding ? heights[i] === least : heights[i]! < Infinity,
        );
        this.#expand(candidates[this.#random.below(candidates.length)]!, parts);
        return;
      }
      case 'repeat': {
        const { item, min, max } = expression;
        let times = min;
        if (!isEnding && this.#height(item) < Infinity) {
          const most = Math.min(max ?? Infinity, min + this.#random.pick([1, 2, 3, 8, 40]));
          // The largest number is where bounds break.
          times =
            this.#random.chance(1, 8) && max !== undefined && max <= 300
              ? max
              : min + this.#random.below(most - min + 1);
        }
        for (let i = 0; i < times; i++) this.#expand(item, parts);
      }
    }
  }

  #character(set: CodePoints): string {
    const common = intersectionOf(set, this.#random.chance(1, 4) ? COMMON[1]! : COMMON[0]!);
    const from = common.length > 0 && !this.#random.chance(1, 30) ? common : set;
    let index = this.#random.below(sizeOf(from));
    for (const [first, last] of from) {
      if (index <= last - first) return String.fromCodePoint(first + index);
      index -= last - first + 1;
    }
    throw new Error('an empty set');
  }
}
