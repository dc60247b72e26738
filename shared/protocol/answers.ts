/**
 * Messages between routers about generated answers whose tokens differ from the ones that the tokenizer makes of the same text.
 * With them, a chat that continues at another router still matches the blocks of its own answer.
 *
 *   answer  [u32 model length][model utf-8][u64 prefix][u32 ids][u32 id × ids][text utf-8]
 */
import { Failure } from '../base/failure.ts';

/**
 * A section of a prompt with its answer: `ids` are its tokens, `text` is its text, `prefix` is the XXH64 of all ids before the
 * section.
 */
export interface AnswerMessage {
  /** Name under which the routers serve the model. */
  readonly model: string;
  readonly prefix: bigint;
  readonly text: string;
  readonly ids: Uint32Array;
}

/** Largest message in bytes; a longer answer is not sent, because buses bound their messages. */
const MAX_BYTES = 256 * 2 ** 10;

/** Returns the bytes of an answer, or undefined when they are over MAX_BYTES. */
export function encodeAnswer({ model, prefix, text, ids }: AnswerMessage): Buffer | undefined {
  const [name, body] = [Buffer.from(model), Buffer.from(text)];
  const head = Buffer.alloc(4 + name.length + 12);
  head.writeUInt32LE(name.length);
  name.copy(head, 4);
  head.writeBigUInt64LE(prefix, 4 + name.length);
  head.writeUInt32LE(ids.length, 12 + name.length);
  const all = Buffer.concat([head, Buffer.from(ids.buffer, ids.byteOffset, ids.byteLength), body]);
  return all.length > MAX_BYTES ? undefined : all;
}

/** Parses an answer, laid out as at the top of this file. @throws Failure `invalid_request` for other bytes. */
export function decodeAnswer(bytes: Buffer): AnswerMessage {
  const refuse = (): never => {
    throw new Failure('invalid_request', `${bytes.length} bytes are no answer`);
  };
  if (bytes.length < 16 || bytes.length > MAX_BYTES) refuse();
  const nameEnd = 4 + bytes.readUInt32LE();
  if (nameEnd + 12 > bytes.length) refuse();
  const count = bytes.readUInt32LE(nameEnd + 8);
  const start = nameEnd + 12;
  if (count === 0 || start + 4 * count > bytes.length) refuse();
  return {
    model: bytes.toString('utf8', 4, nameEnd),
    prefix: bytes.readBigUInt64LE(nameEnd),
    ids: Uint32Array.from({ length: count }, (_, i) => bytes.readUInt32LE(start + 4 * i)),
    text: bytes.toString('utf8', start + 4 * count),
  };
}
