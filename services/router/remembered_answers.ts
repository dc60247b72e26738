/**
 * Messages between routers about generated answers that the next prompt of a chat spells in other tokens. With them, a chat that continues at
 * another router still matches the blocks of its own answer.
 *
 *   answer  [u32 model length][model utf-8][u64 scope][u64 prefix][u32 prefix length]
 *          [u32 head length][u32 ids][u32 id × ids][text utf-8]
 */
import { Failure } from '../../shared/base/failure.ts';
import type { Answer } from '../../shared/text/encoder/generated_token_cache.ts';

/** A remembered turn of a model's chats. */
interface AnswerMessage extends Answer {
  /** Name under which the routers serve the model. */
  readonly model: string;
}

/** Bytes between the model's name and the ids. */
const FIXED = 28;
/** Largest message in bytes; a longer answer is not sent, because buses bound their messages. */
const MAX_BYTES = 256 * 2 ** 10;

/** Returns the bytes of an answer, or undefined when they are over MAX_BYTES. */
export function encodeAnswer({
  model,
  scope,
  prefix,
  prefixLength,
  headLength,
  text,
  ids,
}: AnswerMessage): Buffer | undefined {
  const [name, body] = [Buffer.from(model), Buffer.from(text)];
  const head = Buffer.alloc(4 + name.length + FIXED);
  head.writeUInt32LE(name.length);
  const at = 4 + name.copy(head, 4);
  head.writeBigUInt64LE(scope, at);
  head.writeBigUInt64LE(prefix, at + 8);
  head.writeUInt32LE(prefixLength, at + 16);
  head.writeUInt32LE(headLength, at + 20);
  head.writeUInt32LE(ids.length, at + 24);
  const all = Buffer.concat([head, Buffer.from(ids.buffer, ids.byteOffset, ids.byteLength), body]);
  return all.length > MAX_BYTES ? undefined : all;
}

/** Parses an answer, laid out as at the top of this file. @throws Failure `invalid_request` for other bytes. */
export function decodeAnswer(bytes: Buffer): AnswerMessage {
  const refuse = (): never => {
    throw new Failure('invalid_request', `${bytes.length} bytes are no answer`);
  };
  if (bytes.length < 4 + FIXED || bytes.length > MAX_BYTES) refuse();
  const at = 4 + bytes.readUInt32LE();
  const start = at + FIXED;
  if (start > bytes.length) refuse();
  const count = bytes.readUInt32LE(at + 24);
  if (count === 0 || start + 4 * count > bytes.length) refuse();
  return {
    model: bytes.toString('utf8', 4, at),
    scope: bytes.readBigUInt64LE(at),
    prefix: bytes.readBigUInt64LE(at + 8),
    prefixLength: bytes.readUInt32LE(at + 16),
    headLength: bytes.readUInt32LE(at + 20),
    ids: Uint32Array.from({ length: count }, (_, i) => bytes.readUInt32LE(start + 4 * i)),
    text: bytes.toString('utf8', start + 4 * count),
  };
}
