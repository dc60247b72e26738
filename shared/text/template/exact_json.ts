/**
 * JSON as Python reads it: integers of any length, `1.0` that is no integer, keys in their order whatever they look like. `JSON.parse` keeps
 * none of these, and a template prints them.
 */
import { Dict, type Value } from './values.ts';

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}[\]]/gsy;
const BETWEEN = /[\s,:]*/y;

/** Parses JSON. @returns undefined for a text that is no JSON, or is nested deeper than `maxDepth` */
export function exactJson(text: string, maxDepth: number): Value | undefined {
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  const root: Value[] = [];
  /** Open lists and objects. The `parts` of an object are its keys and values in turn. */
  const open: { readonly isObject: boolean; readonly parts: Value[] }[] = [];
  let parts = root;
  for (const token of tokensOf(text)) {
    if (token === '{' || token === '[') {
      if (open.length === maxDepth) return undefined;
      parts = [];
      open.push({ isObject: token === '{', parts });
    } else if (token === '}' || token === ']') {
      const ended = open.pop();
      parts = open.at(-1)?.parts ?? root;
      if (ended) parts.push(ended.isObject ? dictOf(ended.parts) : ended.parts);
    } else parts.push(scalarOf(token));
  }
  return root[0];
}

function* tokensOf(text: string): Generator<string> {
  for (let at = 0; ;) {
    BETWEEN.lastIndex = at;
    BETWEEN.exec(text);
    TOKEN.lastIndex = BETWEEN.lastIndex;
    const token = TOKEN.exec(text)?.[0];
    if (token === undefined) return;
    at = TOKEN.lastIndex;
    yield token;
  }
}

function dictOf(parts: readonly Value[]): Dict {
  const dict = new Dict();
  for (let i = 0; i + 1 < parts.length; i += 2) dict.set(parts[i] ?? null, parts[i + 1] ?? null);
  return dict;
}

function scalarOf(token: string): Value {
  // Escapes, true, false and null.
  if (!/^-?\d/.test(token)) return JSON.parse(token) as string | boolean | null;
  return /^-?\d+$/.test(token) ? BigInt(token) : Number(token);
}
