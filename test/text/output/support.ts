/** Answers as parsers see them: whole, at every split, and in pieces of a few characters. */
import assert from 'node:assert/strict';
import type { FormatChoice } from '../../../shared/text/output/output_format.ts';
import { OutputFormat } from '../../../shared/text/output/output_format.ts';
import type { OutputDelta } from '../../../shared/text/output/output_delta.ts';

/** A parsed answer: each call's name and its arguments as text. */
export interface Parsed {
  readonly content: string;
  readonly reasoning: string;
  readonly calls: readonly (readonly [name: string, json: string])[];
}

export interface ParseOptions {
  readonly schemas?: Readonly<Record<string, unknown>>;
  readonly prefix?: string;
  readonly hasTools?: boolean;
  readonly isParallel?: boolean;
  /** Whether a limit of the length ends the answer. */
  readonly isCut?: boolean;
}

export function joined(deltas: readonly OutputDelta[]): Parsed {
  let [content, reasoning] = ['', ''];
  const calls: [string, string][] = [];
  for (const delta of deltas) {
    if (delta.kind === 'call') {
      assert.equal(delta.index, calls.length, 'calls are numbered in their order');
      calls.push([delta.name, '']);
    } else if (delta.kind === 'content') content += delta.text;
    else if (delta.kind === 'reasoning') reasoning += delta.text;
    else {
      const call = calls[delta.index];
      assert(call && delta.index === calls.length - 1, 'arguments follow the begin of their call');
      call[1] += delta.text;
    }
  }
  return { content, reasoning, calls };
}

export class ParsedFormat {
  readonly #format: OutputFormat;

  constructor(choice: Partial<FormatChoice>) {
    this.#format = new OutputFormat({ tools: undefined, reasoning: undefined, responseTemplate: undefined, ...choice });
  }

  /** The deltas of a text that arrives in these pieces. */
  deltas(
    pieces: Iterable<string>,
    { schemas = {}, prefix = '', hasTools = true, isParallel = true, isCut = false }: ParseOptions = {},
  ): OutputDelta[] {
    let numIds = 0;
    const parser = this.#format.parser({
      tools: new Map(Object.entries(schemas)),
      prefix,
      hasTools,
      isParallel,
      newId: () => String(numIds++).padStart(16, '0'),
    });
    assert(parser);
    const deltas: OutputDelta[] = [];
    for (const piece of pieces) deltas.push(...parser.push(piece));
    return [...deltas, ...parser.end(isCut)];
  }

  /** The text, parsed as one piece. */
  whole(text: string, options?: ParseOptions): Parsed {
    return joined(this.deltas([text], options));
  }

  /** The text, parsed in pieces of this many characters. */
  pieces(text: string, size: number, options?: ParseOptions): Parsed {
    const all = Array.from({ length: Math.ceil(text.length / size) }, (_, i) => text.slice(i * size, (i + 1) * size));
    return joined(this.deltas(all, options));
  }

  /** The parsed text, which is the same whole, at every split, and in pieces of one, two, three and seven characters. */
  parse(text: string, options?: ParseOptions): Parsed {
    const whole = joined(this.deltas([text], options));
    const same = (pieces: readonly string[]): void => {
      assert.deepEqual(joined(this.deltas(pieces, options)), whole, JSON.stringify(pieces));
    };
    for (let at = 1; at < text.length; at++) same([text.slice(0, at), text.slice(at)]);
    for (const size of [1, 2, 3, 7])
      same(Array.from({ length: Math.ceil(text.length / size) }, (_, i) => text.slice(i * size, (i + 1) * size)));
    return whole;
  }
}
