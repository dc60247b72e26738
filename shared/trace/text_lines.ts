/** Lines of a text file, read in chunks, so that memory is bounded whatever the size of the file. */
import { open } from 'node:fs/promises';
import { Failure, messageOf } from '../base/failure.ts';

/** Most characters of a line (P1): room for a million block ids. */
const MAX_LINE_LENGTH = 2 ** 24;
const CHUNK_BYTES = 2 ** 18;

/** Some consecutive lines of a file. */
export interface LineBatch {
  readonly lines: readonly string[];
  /** Whether the last of `lines` is the end of the file and no line end follows it. */
  readonly isCut: boolean;
  /** Bytes of the file that were read, and its size when it was opened. */
  readonly doneBytes: number;
  readonly totalBytes: number;
}

/**
 * Yields the lines of a UTF-8 file without their line ends, in batches. @throws Failure when the file cannot be read, is not UTF-8, or
 * has a line of more than MAX_LINE_LENGTH characters.
 */
export async function* lineBatches(path: string): AsyncGenerator<LineBatch> {
  const refuse = (message: string): Failure => new Failure('invalid_request', `${path}${message}`);
  const file = await open(path).catch((error: unknown) => {
    throw refuse(` cannot be read: ${messageOf(error)}`);
  });
  try {
    const decoder = new TextDecoder('utf-8', { fatal: true });
    const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
    const { size: totalBytes } = await file.stat();
    let [rest, doneBytes, numLines] = ['', 0, 0];
    for (;;) {
      const { bytesRead } = await file.read(chunk, 0, CHUNK_BYTES).catch((error: unknown) => {
        throw refuse(` cannot be read: ${messageOf(error)}`);
      });
      doneBytes += bytesRead;
      const isEnd = bytesRead === 0;
      const lines = (rest + decoder.decode(chunk.subarray(0, bytesRead), { stream: !isEnd })).split('\n');
      rest = isEnd ? '' : (lines.pop() ?? '');
      const isCut = isEnd && lines.at(-1) !== '';
      if (isEnd && !isCut) lines.pop();
      const long = [...lines, rest].findIndex((line) => line.length > MAX_LINE_LENGTH);
      if (long >= 0) throw refuse(`:${numLines + long + 1}: a line has at most ${MAX_LINE_LENGTH} characters`);
      numLines += lines.length;
      if (lines.length > 0) yield { lines, isCut, doneBytes, totalBytes };
      if (isEnd) return;
    }
  } catch (error) {
    if (error instanceof TypeError) throw refuse(' is not UTF-8 text; if it is compressed, unpack it first');
    throw error;
  } finally {
    await file.close();
  }
}
