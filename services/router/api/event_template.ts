/**
 * Events of a stream that differ from one another in a few values only: the text between those is made once, and an event of one token costs
 * the escaping of its text.
 *
 *   data: {"id":"...","choices":[{"delta":{"content":  " w"  },"finish_reason":null}]}
 *   └─────────────────── constant ──────────────────┘  value └────── constant ──────┘
 */

/** The text of an event around its values. */
export class EventTemplate {
  /** Constant parts; between two of them stands the value whose number is in `#numbers`. */
  readonly #parts: readonly string[];
  readonly #numbers: readonly number[];

  /**
   * `eventOf` returns the text of an event in which these strings stand, as JSON strings, in place of the values; it is called a few times
   * with different ones, none of which is empty.
   */
  constructor(numValues: number, eventOf: (values: readonly string[]) => string) {
    const named = (base: string): string[] => Array.from({ length: numValues }, (_, i) => `${base}${i}`);
    const quotedOf = (base: string): string[] => named(base).map((mark) => JSON.stringify(mark));
    // The constant parts come from clients too, and may have what stands for a value.
    const constant = eventOf(named('').map(() => ' '));
    let base = '\u0001';
    while (quotedOf(base).some((mark) => constant.includes(mark))) base += '\u0001';
    const event = eventOf(named(base));
    const quoted = quotedOf(base);
    const parts: string[] = [];
    const numbers: number[] = [];
    let at = 0;
    for (;;) {
      const next = quoted
        .map((mark, number) => ({ number, start: event.indexOf(mark, at), length: mark.length }))
        .filter(({ start }) => start >= 0)
        .sort((a, b) => a.start - b.start)[0];
      if (!next) break;
      parts.push(event.slice(at, next.start));
      numbers.push(next.number);
      at = next.start + next.length;
    }
    this.#parts = [...parts, event.slice(at)];
    this.#numbers = numbers;
  }

  /** Returns the event with these values, each as JSON. */
  fill(...values: readonly string[]): string {
    let [text = ''] = this.#parts;
    for (let i = 0; i < this.#numbers.length; i++)
      text += (values[this.#numbers[i] ?? 0] ?? '') + (this.#parts[i + 1] ?? '');
    return text;
  }
}

/** The template of the last event: most of the next ones are like it. */
export class LastTemplate {
  #last: { readonly key: string; readonly template: EventTemplate } | undefined;

  /** Returns the template of the events that have this key, which `made` makes where it is not that of the last one. */
  of(key: string, made: () => EventTemplate): EventTemplate {
    if (this.#last?.key !== key) this.#last = { key, template: made() };
    return this.#last.template;
  }
}
