/**
 * The bytes of every token of a vocabulary, for a grammar that walks them. Special tokens have bytes that no text has, so a grammar allows
 * them where it names them and never as text.
 */
import { z } from 'zod';
import type { TextFiles } from '../../model/text_files.ts';
import { tokenSpeller } from '../../model/token_bytes.ts';
import { hasForeignByte, specialTokenBytes } from '../special_token_bytes.ts';
import { tokensOf, withOwnIds, type AddedTokenJson, type TokenizerJson } from '../../model/tokenizer_json.ts';

/** Bytes of all tokens, one after the other, in memory that threads share. */
export interface TokenTable {
  readonly bytes: Uint8Array;
  /** [vocab + 1] Where each token's bytes begin: those of token i are [offsets[i], offsets[i + 1]). */
  readonly offsets: Uint32Array;
}

/** Tokens that tokenizer_config.json gives a role. An added one is special even when no file marks it as such. */
const ROLES = ['bos', 'eos', 'unk', 'sep', 'pad', 'cls', 'mask'].map((role) => `${role}_token`);

const nameSchema = z.union([z.string(), z.object({ content: z.string() }).transform(({ content }) => content)]);
const configSchema = z.looseObject({
  added_tokens_decoder: z.record(z.string(), z.looseObject({ special: z.boolean().optional() })).nullish(),
  additional_special_tokens: z.array(z.unknown()).nullish(),
});

/** Number of tokens of a table, those without bytes included. */
export function vocabSizeOf({ offsets }: TokenTable): number {
  return offsets.length - 1;
}

/** Returns the bytes of a token; none for one that no grammar allows, such as an id that the tokenizer does not use. */
export function bytesOfToken({ bytes, offsets }: TokenTable, id: number): Uint8Array {
  return bytes.subarray(offsets[id], offsets[id + 1]);
}

/**
 * Returns the table of a tokenizer for a model with `vocabSize` logits. Ids beyond the tokenizer's have no bytes; tokens beyond the
 * logits are left out. @throws Error when the files are not JSON of a tokenizer
 */
export function tokenTable({ tokenizer, config }: TextFiles, vocabSize: number): TokenTable {
  const json = JSON.parse(tokenizer) as TokenizerJson;
  const spell = tokenSpeller(json.decoder);
  const found: (Uint8Array | undefined)[] = Array.from({ length: vocabSize }, () => undefined);
  const put = (id: number, bytes: Uint8Array | undefined): void => {
    if (id < vocabSize) found[id] = bytes;
  };
  const putText = (id: number, bytes: Uint8Array): void => {
    put(id, hasForeignByte(bytes) ? undefined : bytes);
  };
  const { unk_token: unknown, vocab } = json.model;
  for (const [token, id] of tokensOf(vocab)) {
    if (token === unknown) put(id, undefined);
    else putText(id, spell(token));
  }
  const isSpecial = isSpecialToken(JSON.parse(config));
  const isSpelled = isReversed(json.normalizer);
  for (const token of withOwnIds(json)) {
    const { id, content } = token;
    if (content === unknown || content === '') put(id, undefined);
    else if (isSpecial(token)) put(id, specialTokenBytes(content));
    else if (isSpelled || !isNormalised(token)) putText(id, spell(content));
    else put(id, undefined);
  }
  return tableOf(found);
}

/**
 * Returns which added tokens are special, by tokenizer.json or by `config`, the parsed tokenizer_config.json: those that a grammar names as
 * special tokens.
 */
export function isSpecialToken(config: unknown): (token: AddedTokenJson) => boolean {
  const { added_tokens_decoder: decoder, additional_special_tokens: additional, ...rest } = configSchema.parse(config);
  const names = [...ROLES.map((role) => rest[role]), ...(additional ?? [])];
  const special = new Set(names.flatMap((name) => nameSchema.safeParse(name).data ?? []));
  return ({ id, content, special: isMarked }) =>
    isMarked === true || special.has(content) || decoder?.[String(id)]?.special === true;
}

function isNormalised({ normalized, special }: AddedTokenJson): boolean {
  return normalized ?? special !== true;
}

/** Whether the decoder reverses the normaliser, so that an added token that is matched in normalised text decodes to its content. */
function isReversed(normalizer: object | null): boolean {
  if (normalizer === null) return true;
  const { type, normalizers } = normalizer as { readonly type: string; readonly normalizers?: readonly object[] };
  return type === 'Sequence' ? (normalizers ?? []).every(isReversed) : type === 'NFC' || type === 'Replace';
}

/** Returns the table of tokens whose bytes are known; an undefined one has none. */
export function tableOf(tokens: readonly (Uint8Array | undefined)[]): TokenTable {
  const offsets = new Uint32Array(new SharedArrayBuffer(4 * (tokens.length + 1)));
  tokens.forEach((token, id) => {
    offsets[id + 1] = (offsets[id] ?? 0) + (token?.length ?? 0);
  });
  const bytes = new Uint8Array(new SharedArrayBuffer(offsets.at(-1) ?? 0));
  tokens.forEach((token, id) => {
    if (token) bytes.set(token, offsets[id]);
  });
  return { bytes, offsets };
}
