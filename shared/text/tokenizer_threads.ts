/** Tokenizer threads of a model: which there are, when each starts, and what one that starts late has to know. */
import { Failure, messageOf } from '../base/failure.ts';
import { linkEnds } from '../base/thread_link.ts';
import type { Thread, ThreadModule, Threads } from '../base/threads.ts';
import { ModelError } from '../model/model_folder.ts';
import type { TokenizerInput, TokenizerTools } from './tokenizer_tools.ts';
import type { start } from './tokenizer_worker.ts';

/**
 * The tokenizer threads of a model. The first starts with the model, each of the others with the first request that needs it:
 *
 * - `prompts` encodes short prompts; while idle, it encodes parts of long prompts for `long`;
 * - `streams` decodes the tokens of running streams, and names tokens for log-probabilities; until it has started, `prompts` does;
 * - `long` encodes long prompts;
 * - `tools` serves /tokenize and /detokenize.
 */
export interface Workers {
  readonly prompts: Thread<TokenizerTools>;
  readonly streams: LateTokenizer;
  readonly long: LateTokenizer;
  readonly tools: LateTokenizer;
  readonly onDeath: (error: Error) => void;
}

/** A thread that is a tokenizer and nothing else. */
export const tokenizerModule: ThreadModule = { url: new URL('./tokenizer_worker.js', import.meta.url) };

/** A tokenizer thread that starts when it is first needed. */
class LateTokenizer {
  readonly #start: () => Promise<Thread<TokenizerTools>>;
  #starting: Promise<Thread<TokenizerTools>> | undefined;
  #running: Thread<TokenizerTools> | undefined;
  #isClosed = false;

  constructor(start: () => Promise<Thread<TokenizerTools>>) {
    this.#start = start;
  }

  /** The thread; undefined until it has started. */
  get running(): Thread<TokenizerTools> | undefined {
    return this.#running;
  }

  /** Resolves to the thread when it has started. A start that failed is tried again by the next call. */
  async get(): Promise<Thread<TokenizerTools>> {
    if (this.#isClosed) throw new Failure('cancelled', 'the tokenizer was closed');
    return (this.#starting ??= this.#start().then(
      (thread) => (this.#running = thread),
      (error: unknown) => {
        this.#starting = undefined;
        throw error;
      },
    ));
  }

  /** Calls `use` with the thread once it has started; not where nobody has started it. */
  notify(use: (thread: Thread<TokenizerTools>) => void): void {
    void this.#starting?.then(use, () => undefined);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    const thread = await this.#starting?.catch(() => undefined);
    await thread?.close();
  }
}

/**
 * Starts the first tokenizer thread of the model at `path`. The others start when they are needed. @throws ModelError when the tokenizer's
 * files cannot be used
 */
export async function startWorkers(
  path: string,
  input: TokenizerInput,
  module: ThreadModule,
  threads: Threads,
  onDeath: (error: Error) => void,
): Promise<Workers> {
  const startOne = (): Promise<Thread<TokenizerTools>> => startTokenizer(path, input, module, threads, onDeath);
  const prompts = await startOne();
  return {
    prompts,
    onDeath,
    streams: new LateTokenizer(startOne),
    tools: new LateTokenizer(startOne),
    long: new LateTokenizer(async () => startLong(await startOne(), prompts)),
  };
}

/** Prepares a thread for long prompts, and has `prompts` help it. Returns the thread, which then has all answers that `prompts` has. */
async function startLong(
  long: Thread<TokenizerTools>,
  prompts: Thread<TokenizerTools>,
): Promise<Thread<TokenizerTools>> {
  await long.call('delimiters', undefined);
  const [helperEnd, ownEnd] = linkEnds();
  prompts.notify('helpEncoding', helperEnd, [helperEnd]);
  long.notify('acceptHelp', ownEnd, [ownEnd]);
  // A thread serves notifications at once, so each answer is among these or is sent when the thread has started. They go from thread to
  // thread: all of them may be 32 MB.
  const [from, to] = linkEnds();
  long.notify('takeAnswers', to, [to]);
  prompts.notify('giveAnswers', from, [from]);
  await long.call('answersTaken', undefined);
  return long;
}

/** Starts a tokenizer thread and waits until it has read the tokenizer. @throws ModelError when it cannot. */
async function startTokenizer(
  path: string,
  texts: TokenizerInput,
  module: ThreadModule,
  threads: Threads,
  onDeath: (error: Error) => void,
): Promise<Thread<TokenizerTools>> {
  let isReady = false;
  const calls = threads.spawn<typeof start>(module, texts, {
    onDeath: (error) => {
      if (isReady) onDeath(error);
    },
  });
  try {
    await calls.call('longestToken', undefined);
  } catch (cause) {
    throw new ModelError(`the tokenizer of ${path} cannot be used: ${messageOf(cause)}`, { cause });
  }
  isReady = true;
  return calls;
}
