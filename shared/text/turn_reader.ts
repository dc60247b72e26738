/** Reads the text of an assistant's turn as a message, so that the generated text and a template's spelling of it can be compared. */
import { messageOf } from './answer_message.ts';
import { reasoningMarkers } from './output/reasoning_tables.ts';
import type { OutputFormat } from './output/output_format.ts';

/** An assistant's turn as a message. All spellings of the same message read alike. */
export interface ReadTurn {
  readonly reasoning: string;
  /** Whether the text closes a reasoning block. Tells an empty block, with which templates turn reasoning off, from no block. */
  readonly hasBlock: boolean;
  /** Content and calls, as JSON. */
  readonly rest: string;
}

/** Returns a turn's text as a message; undefined for a text that breaks off within a part. */
export type TurnReader = (text: string) => ReadTurn | undefined;

/** Tokens of JSON. The white space between them is no part of a value. */
const JSON_TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|[a-z]+|[{}[\]:,]/gs;

/** Options of parsers that take every call of a text. */
const ANY_CALLS = { tools: new Map(), hasTools: true, isParallel: true, prefix: '', newId: () => '' } as const;

/**
 * Returns the reader of turns in a model's output format. White space around reasoning, content and calls, and the spelling of a call's JSON,
 * make no difference.
 */
export function turnReader(format: OutputFormat): TurnReader {
  const { choice } = format;
  const closing = (choice.reasoning && reasoningMarkers[choice.reasoning]?.close) ?? [];
  return (text) => {
    const parser = format.parser(ANY_CALLS);
    if (!parser) return contentTurn(text);
    const pieces = parser.push(text);
    if (parser.isReasoning && pieces.some(({ kind }) => kind === 'reasoning')) return undefined;
    const message = messageOf([...pieces, ...parser.end(true)], true);
    const calls = (message.tool_calls ?? []).map(({ function: called }) => [
      called.name,
      neutralJson(called.arguments),
    ]);
    if (calls.some(([, json]) => json === undefined)) return undefined;
    const rest = JSON.stringify([message.content?.trim() ?? '', calls]);
    const hasBlock = closing.some((literal) => text.includes(literal));
    return { reasoning: message.reasoning?.trim() ?? '', hasBlock, rest };
  };
}

/** Returns a turn that has only this content. */
export function contentTurn(content: string): ReadTurn {
  return { reasoning: '', hasBlock: false, rest: JSON.stringify([content.trim(), []]) };
}

/** Returns JSON without white space, its strings and numbers in one spelling; undefined for a text that is no JSON. */
function neutralJson(text: string): string | undefined {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  return (text.match(JSON_TOKEN) ?? []).map(neutralToken).join('');
}

function neutralToken(token: string): string {
  if (!/^["\d-]/.test(token)) return token;
  const value = JSON.parse(token) as string | number;
  // An integer that a double cannot hold keeps its digits.
  return typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/.test(token)
    ? token
    : JSON.stringify(value);
}
