/** A text stream with the tokenizer that decodes for it, as the router's run of a prompt has both. */
import type { TextCodec } from '../../shared/text/text.ts';
import { TextStream, type TextStreamOptions } from '../../shared/text/text_stream.ts';

export class DecodedStream extends TextStream {
  readonly #decoder: Pick<TextCodec, 'decode' | 'plainText'>;

  constructor(codec: Pick<TextCodec, 'decode' | 'plainText'>, prompt: Uint32Array, options: TextStreamOptions) {
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
