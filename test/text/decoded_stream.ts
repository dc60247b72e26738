/** A text stream with the tokenizer that decodes for it, as the router's run of a prompt has both. */
import type { TextCodec } from '../../shared/text/text.ts';
import { TextStream, type StreamTexts, type TextStreamOptions } from '../../shared/text/text_stream.ts';

/** The part of a codec that streams use. */
export type StreamCodec = Pick<TextCodec, 'decode' | 'plainText' | 'partOf'>;

/** A codec that knows no text without its tokenizer. */
export const unknownTexts: StreamTexts = { plainText: () => undefined, partOf: () => undefined };

export class DecodedStream extends TextStream {
  readonly #decoder: StreamCodec;

  constructor(codec: StreamCodec, prompt: Uint32Array, options: TextStreamOptions) {
    super(codec, prompt, options);
    this.#decoder = codec;
  }

  async push(token: number, isSearched: boolean): Promise<string> {
    return this.onToken(token, isSearched) ?? this.#decoded();
  }

  async flush(isSearched: boolean): Promise<string> {
    return this.onEnd(isSearched) ?? this.#decoded();
  }

  async #decoded(): Promise<string> {
    const { lists, skipSpecialTokens } = this.undecoded;
    return this.onDecoded(await this.#decoder.decode(lists, skipSpecialTokens));
  }
}
