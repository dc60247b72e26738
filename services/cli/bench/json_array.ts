/** Elements of a file that is one large JSON array, read one after the other: such files are larger than a text may be. */
import { open } from 'node:fs/promises';
import { Failure, messageOf } from '../../../shared/base/failure.ts';

const CHUNK_BYTES = 2 ** 20;
/** Most bytes of an element (P1). */
const MAX_ELEMENT_BYTES = 2 ** 26;

const [QUOTE, BACKSLASH, OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x22, 0x5c, 0x5b, 0x5d, 0x7b, 0x7d];

/** Follows brackets and texts over chunks, and finds where the objects of the outer array begin and end. */
class ObjectFinder {
  #depth = 0;
  #isText = false;
  #isEscaped = false;

  /** Calls `found` with a byte's index and whether an object begins or ends there. */
  scan(bytes: Uint8Array, found: (index: number, isEnd: boolean) => void): void {
    for (let i = 0; i < bytes.length; i++) {
      const byte = bytes[i];
      if (this.#isText) {
        if (this.#isEscaped) this.#isEscaped = false;
        else if (byte === BACKSLASH) this.#isEscaped = true;
        else if (byte === QUOTE) this.#isText = false;
      } else if (byte === QUOTE) this.#isText = true;
      else if (byte === OPEN_OBJECT || byte === OPEN_LIST) {
        if (this.#depth === 1 && byte === OPEN_OBJECT) found(i, false);
        this.#depth++;
      } else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) {
        this.#depth--;
        if (this.#depth === 1 && byte === CLOSE_OBJECT) found(i, true);
      }
    }
  }

  /** Whether the outer array is closed. */
  get isComplete(): boolean {
    return this.#depth === 0;
  }
}

/** Yields the objects of the JSON array in the file `path`. @throws Failure when the file cannot be read or is no such array */
export async function* objectsOfFile(path: string): AsyncGenerator {
  const refuse = (message: string): Failure => new Failure('invalid_request', `${path} ${message}`);
  const file = await open(path).catch((error: unknown) => {
    throw refuse(`cannot be read: ${messageOf(error)}`);
  });
  try {
    const finder = new ObjectFinder();
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    let parts: Buffer[] = [];
    let [size, isInside, isFirst] = [0, false, true];
    for (;;) {
      const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES).catch((error: unknown) => {
        throw refuse(`cannot be read: ${messageOf(error)}`);
      });
      if (bytesRead === 0) break;
      const bytes = chunk.subarray(0, bytesRead);
      if (isFirst && !/^\uFEFF?\s*\[/.test(bytes.toString('utf8', 0, 64)))
        throw refuse('is no JSON array of conversations: a ShareGPT file begins with `[`');
      isFirst = false;
      const texts: string[] = [];
      let start = 0;
      finder.scan(bytes, (index, isEnd) => {
        isInside = !isEnd;
        if (!isEnd) start = index;
        else {
          texts.push(Buffer.concat([...parts, bytes.subarray(start, index + 1)]).toString());
          [parts, size] = [[], 0];
        }
      });
      for (const text of texts) yield parsed(text, refuse);
      if (!isInside) continue;
      size += bytesRead - start;
      if (size > MAX_ELEMENT_BYTES) throw refuse(`has an object of more than ${MAX_ELEMENT_BYTES} bytes`);
      parts.push(Buffer.from(bytes.subarray(start)));
    }
    if (isFirst) throw refuse('is empty');
    if (!finder.isComplete) throw refuse('ends within its array: it was not copied whole');
  } finally {
    await file.close();
  }
}

function parsed(text: string, refuse: (message: string) => Failure): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw refuse(`is not JSON: ${messageOf(error)}`);
  }
}
