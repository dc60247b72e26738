/**
 * The parts of a body that can be large: its nesting, prompts, messages, biases. Each is refused at its bound before its items are
 * looked at, and read by a loop rather than by a schema.
 */
import { messageOf } from '../../../shared/base/failure.ts';
import { withoutNulls } from '../../../shared/base/without_nulls.ts';
import { exactInteger } from './exact_integer.ts';
import { parseExactly } from './exact_texts.ts';
import { parseWithIds, scan } from './json_ids.ts';
import { ParameterFailure, type BodyLimits } from './parameter_failure.ts';
import { joinParts, leftOutPart } from './text_parts.ts';

/** Deepest nesting of a body, more than any request needs. Recursion over client data is bounded by it. */
const MAX_DEPTH = 64;
const MAX_KEYS = 1_000;
/** Prompts of one request (P1): each is a request of its own to the cluster. */
const MAX_PROMPTS = 256;
/** Keys whose values may be lists of token ids, or contain some. */
const ID_LISTS = new Set(['prompt', 'input', 'tokens']);
/** Upper bound of the keys that one error names. */
const MAX_NAMED = 20;

/**
 * Parses a body: long lists of token ids become Uint32Arrays, a seed that a double cannot hold a bigint. @throws ParameterFailure when
 * the body is no JSON object, is nested too deep or has too many keys.
 */
export function parseJson(bytes: Uint8Array): Record<string, unknown> {
  if (bytes.length === 0) throw new ParameterFailure('the body is empty: send a JSON object', null);
  const { isTooDeep, found } = scan(bytes, MAX_DEPTH);
  if (isTooDeep) throw new ParameterFailure(`the body is nested over ${MAX_DEPTH} levels deep`, null);
  let parsed: unknown;
  try {
    const body = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    // A body with marks in it has its lists elsewhere.
    parsed = parseExactly(body, (own) =>
      parseWithIds(own, own === body ? found : scan(own, MAX_DEPTH).found, ID_LISTS),
    );
  } catch (error) {
    throw new ParameterFailure(`the body is not JSON: ${messageOf(error).slice(0, 200)}`, null);
  }
  if (typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) {
    throw new ParameterFailure('the body is not a JSON object', null);
  }
  const { seed } = parsed as { seed?: unknown };
  if (typeof seed === 'number' && !Number.isSafeInteger(seed) && Number.isInteger(seed)) {
    const exact = exactInteger(bytes, 'seed') ?? (Math.abs(seed) >= 2 ** 63 ? BigInt(seed) : undefined);
    // The double has lost the exact value.
    if (exact === undefined)
      throw new ParameterFailure('seed: write a large number as plain digits, without exponent or fraction', 'seed');
    (parsed as Record<string, unknown>)['seed'] = exact;
  }
  if (Object.keys(parsed).length > MAX_KEYS) throw new ParameterFailure(`the body has over ${MAX_KEYS} keys`, null);
  return parsed as Record<string, unknown>;
}

/** Reads prompts: one text, one list of ids, or up to 256 of either, mixed. @throws ParameterFailure at the first that is neither. */
export function readPrompts(prompt: unknown, limits: BodyLimits, name = 'prompt'): readonly (string | Uint32Array)[] {
  const wanted = `${name}: a text, a list of token ids, or 1 to ${MAX_PROMPTS} of either`;
  if (typeof prompt === 'string') return [prompt];
  if (prompt instanceof Uint32Array) return [readIds(prompt, limits, name)];
  if (!Array.isArray(prompt) || prompt.length === 0) throw new ParameterFailure(`${wanted}; none empty`, name);
  if (typeof prompt[0] === 'number') return [readIds(prompt, limits, name)];
  if (prompt.length > MAX_PROMPTS) throw new ParameterFailure(`${wanted}, not ${prompt.length}`, name);
  return prompt.map((one: unknown, index) => {
    if (typeof one === 'string') return one;
    if (one instanceof Uint32Array || (Array.isArray(one) && one.length > 0))
      return readIds(one, limits, `${name}.${index}`);
    throw new ParameterFailure(`${wanted}; number ${index} is none`, `${name}.${index}`);
  });
}

/**
 * Reads one list of token ids. @throws ParameterFailure when the list is longer than the context, or at the first item that is no id
 * of the vocabulary.
 */
export function readIds(
  list: readonly unknown[] | Uint32Array,
  { maxModelLen, vocabSize }: BodyLimits,
  name: string,
): Uint32Array {
  const refuseOutside = (id: number, index: number): never => {
    const where = `${name}.${index}`;
    throw new ParameterFailure(`${where}: token id ${id} is outside the vocabulary of ${vocabSize}`, where);
  };
  if (list.length > maxModelLen) {
    throw new ParameterFailure(
      `This model's maximum context length is ${maxModelLen} tokens. However, you requested ${list.length} tokens in ${name}. Please shorten it.`,
      name,
      'context_too_long',
    );
  }
  if (list instanceof Uint32Array) {
    let highest = 0;
    for (let i = 0; i < list.length; i++) highest = Math.max(highest, list[i] ?? 0);
    if (highest >= vocabSize) {
      const index = list.findIndex((id) => id >= vocabSize);
      refuseOutside(list[index] ?? 0, index);
    }
    return list;
  }
  const ids = new Uint32Array(list.length);
  for (const [index, id] of list.entries()) {
    if (typeof id !== 'number' || !Number.isInteger(id) || id < 0) {
      throw new ParameterFailure(`${name}.${index}: a token id is a whole number from 0`, `${name}.${index}`);
    }
    if (id >= vocabSize) refuseOutside(id, index);
    ids[index] = id;
  }
  return ids;
}

/** Reads `logit_bias`, an object from token id (plain digits) to bias. @throws ParameterFailure naming every entry that is wrong. */
export function readBias(bias: unknown, vocabSize: number): { tokens: number[]; values: number[] } {
  if (bias === undefined) return { tokens: [], values: [] };
  if (typeof bias !== 'object' || bias === null || Array.isArray(bias)) {
    throw new ParameterFailure('logit_bias: an object of token ids and biases', 'logit_bias');
  }
  const [tokens, values]: [number[], number[]] = [[], []];
  const [noIds, outside, noBias]: [string[], string[], string[]] = [[], [], []];
  for (const [key, value] of Object.entries(bias) as [string, unknown][]) {
    if (!/^(0|[1-9]\d{0,9})$/.test(key)) noIds.push(JSON.stringify(key.slice(0, 32)));
    else if (Number(key) >= vocabSize) outside.push(key);
    else if (typeof value !== 'number' || !(Math.abs(value) <= 100)) noBias.push(key);
    else {
      tokens.push(Number(key));
      values.push(value);
    }
  }
  const wrong = [
    ...(noIds.length > 0 ? [`keys are token ids, not ${named(noIds)}`] : []),
    ...(outside.length > 0 ? [`${named(outside)} outside the vocabulary of ${vocabSize}`] : []),
    ...(noBias.length > 0 ? [`the bias of ${named(noBias)} is no number from -100 to 100`] : []),
  ];
  if (wrong.length > 0) throw new ParameterFailure(`logit_bias: ${wrong.join('; ')}`, 'logit_bias');
  return { tokens, values };
}

function named(keys: readonly string[]): string {
  const more = keys.length - MAX_NAMED;
  return keys.slice(0, MAX_NAMED).join(', ') + (more > 0 ? ` and ${more} more` : '');
}

/**
 * Reads messages for the chat template, with the text of each joined. Other fields and the roles pass unchanged, since each template
 * decides which roles exist. `maxMessages` is the context length, because a message takes at least one token. Adds what is left out of
 * results of tools to `ignored`.
 */
export function readMessages(
  messages: unknown,
  maxMessages: number,
  ignored: string[],
): readonly Record<string, unknown>[] {
  if (!Array.isArray(messages) || messages.length === 0) {
    throw new ParameterFailure('messages: a list of at least one message', 'messages');
  }
  if (messages.length > maxMessages) {
    throw new ParameterFailure(
      `messages: ${messages.length} of them cannot fit a context of ${maxMessages} tokens`,
      'messages',
      'context_too_long',
    );
  }
  return messages.map((message: unknown, index) => readMessage(message, `messages.${index}`, ignored));
}

/** Keys under which clients of other servers put media into a message. */
const MEDIA = ['audio', 'images', 'videos'];

function readMessage(message: unknown, where: string, ignored: string[]): Record<string, unknown> {
  if (typeof message !== 'object' || message === null || Array.isArray(message)) {
    throw new ParameterFailure(`${where}: a message is an object with role and content`, where);
  }
  // Like transformers 5, drop keys with null: a Python template would print `None` for them.
  const given = withoutNulls(message);
  const { role, content, tool_calls: calls } = given;
  if (typeof role !== 'string' || role === '') {
    throw new ParameterFailure(`${where}.role: a text such as system, user or assistant`, `${where}.role`);
  }
  for (const key of MEDIA) {
    const value = given[key];
    if (value !== undefined && !(Array.isArray(value) && value.length === 0))
      throw new ParameterFailure(`${where}.${key}: is not supported; only text is`, `${where}.${key}`);
  }
  const hasCalls = Array.isArray(calls) && calls.length > 0;
  const wrong = hasCalls ? calls.findIndex((call) => typeof call !== 'object' || call === null) : -1;
  if (wrong >= 0) {
    const at = `${where}.tool_calls.${wrong}`;
    throw new ParameterFailure(`${at}: a call is an object with id, type and function`, at);
  }
  if (content === undefined && role !== 'assistant') {
    throw new ParameterFailure(`${where}.content: is missing`, `${where}.content`);
  }
  if (content === undefined) return hasCalls ? given : { ...given, content: '' };
  const leftOut = RESULT_ROLES.includes(role) ? ignored : undefined;
  return { ...given, content: textOf(content, `${where}.content`, leftOut) };
}

const TEXT_PARTS = ['text', 'input_text', 'output_text'];

/** Roles of messages that an agent's tools have written. */
const RESULT_ROLES = ['tool', 'function'];

/** `leftOut`: takes the paths of parts that are no text; undefined where they are refused. */
function textOf(content: unknown, where: string, leftOut: string[] | undefined): string {
  if (typeof content === 'string') return content;
  const refuse = (): never => {
    throw new ParameterFailure(`${where}: only text is supported: a string, or parts of type "text"`, where);
  };
  if (!Array.isArray(content)) return refuse();
  const texts = content.map((part: unknown, index): string => {
    if (typeof part === 'string') return part;
    if (typeof part !== 'object' || part === null) return refuse();
    const { type, text, refusal } = part as Record<string, unknown>;
    const isText = type === undefined || TEXT_PARTS.some((name) => name === type);
    if (isText && typeof text === 'string') return text;
    if (type === 'refusal' && typeof refusal === 'string') return refusal;
    return leftOut && !isText && typeof type === 'string' ? leftOutPart(type, `${where}.${index}`, leftOut) : refuse();
  });
  return joinParts(texts);
}
