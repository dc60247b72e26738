/** The requests that are sent: conversations of one turn or more, made when they are needed, so that only lengths and seeds are in memory. */
import { Random } from '../../../shared/base/random.ts';
import type { Trace } from '../../../shared/trace/trace.ts';
import { seedOf, type Prompt, type PromptMaker } from './prompts.ts';

/** The next message of a conversation, and how many tokens its answer may have. */
export interface Turn {
  readonly prompt: Prompt;
  /** Tokens of this turn's own prompt, as wanted; the server's count is the measured one. */
  readonly promptTokens: number;
  readonly outputTokens: number;
}

/** A conversation: each turn is sent when the one before it was answered. */
interface Conversation {
  readonly numTurns: number;
  /** Returns the turn at `index`. */
  turn(index: number): Turn;
}

/** All that is sent. */
export interface Workload {
  readonly numConversations: number;
  /** Requests, over all conversations. */
  readonly numRequests: number;
  /** Returns the conversation at `index`; equal ones for equal seeds. */
  conversation(index: number): Conversation;
  /** When each conversation begins, in milliseconds after the start; undefined: by the rate. */
  readonly arrivalMs: Float64Array | undefined;
  /** Sentences for readers of the figures: conversations that repeat, requests that were left out. */
  readonly notes: readonly string[];
}

/** Lengths of generated prompts and answers. */
export interface RandomLengths {
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Lengths are even in [length × (1 − ratio), length × (1 + ratio)]. */
  readonly inputRatio: number;
  readonly outputRatio: number;
  /** Tokens of a prefix that all prompts share, before those of `inputTokens`. */
  readonly prefixTokens: number;
}

/** Tokens that a chat template puts around a message, at most, for most models. */
const FRAME_TOKENS = 24;
/** Share of the context that is filled: texts of a wanted length have a few tokens more or less. */
const FITTED_SHARE = 0.9;
/** Least tokens of a prompt and of an answer that a run is made to fit with. */
const MIN_FITTED = 8;

/**
 * Returns default lengths with which conversations fit a context of `maxTokens`: those of `free` may be shortened. Lengths that the caller
 * named stay as they are.
 */
export function fitted(
  lengths: RandomLengths,
  free: { readonly input: boolean; readonly output: boolean },
  { maxTokens, numTurns }: { readonly maxTokens: number; readonly numTurns: number },
): RandomLengths {
  const { inputTokens, outputTokens, inputRatio, outputRatio, prefixTokens } = lengths;
  const room = (FITTED_SHARE * (maxTokens - prefixTokens)) / numTurns - FRAME_TOKENS;
  const [input, output] = [inputTokens * (1 + inputRatio), outputTokens * (1 + outputRatio)];
  if (input + output <= room) return lengths;
  const shorter = (tokens: number, ratio: number): number => Math.max(MIN_FITTED, Math.floor(tokens / (1 + ratio)));
  // Both in the proportion that they have, or the one that may be shortened alone.
  const forInput = free.output ? (room * input) / (input + output) : room - output;
  const forOutput = free.input ? (room * output) / (input + output) : room - input;
  return {
    ...lengths,
    ...(free.input ? { inputTokens: Math.min(inputTokens, shorter(forInput, inputRatio)) } : {}),
    ...(free.output ? { outputTokens: Math.min(outputTokens, shorter(forOutput, outputRatio)) } : {}),
  };
}

/** Returns conversations of random words. With more than one turn, each further one sends a new message of random length. */
export function randomWorkload(
  maker: PromptMaker,
  lengths: RandomLengths,
  {
    seed,
    numConversations,
    numTurns,
  }: { readonly seed: number; readonly numConversations: number; readonly numTurns: number },
): Workload {
  const prefix = { seed: seedOf(seed, 1), numTokens: lengths.prefixTokens };
  return {
    numConversations,
    numRequests: numConversations * numTurns,
    arrivalMs: undefined,
    notes: [],
    conversation: (index) => ({
      numTurns,
      turn: (at) => {
        const random = new Random(seedOf(seed, 2, index, at));
        const inputTokens = lengthIn(lengths.inputTokens, lengths.inputRatio, random);
        const outputTokens = lengthIn(lengths.outputTokens, lengths.outputRatio, random);
        const own = { seed: random.u32(), numTokens: inputTokens };
        const parts = at === 0 && prefix.numTokens > 0 ? [prefix, own] : [own];
        const promptTokens = parts.reduce((sum, { numTokens }) => sum + numTokens, 0);
        return { prompt: maker.make(parts), promptTokens, outputTokens };
      },
    }),
  };
}

/** Returns a length around `mean`, at least 1. */
function lengthIn(mean: number, ratio: number, random: Random): number {
  const [low, high] = [Math.max(1, Math.floor(mean * (1 - ratio))), Math.max(1, Math.ceil(mean * (1 + ratio)))];
  return low + random.below(high - low + 1);
}

/** Returns the requests of a trace: blocks with equal ids have equal tokens. `speed` divides its times; undefined: they are not used. */
export function traceWorkload(
  maker: PromptMaker,
  trace: Trace,
  { seed, speed }: { readonly seed: number; readonly speed: number | undefined },
): Workload {
  const { numRequests } = trace;
  return {
    numConversations: numRequests,
    numRequests,
    notes: [],
    arrivalMs: speed === undefined ? undefined : trace.columns.arrivalMs.map((ms) => ms / speed),
    conversation: (index) => ({
      numTurns: 1,
      turn: () => {
        const { hashIds, inputTokens, outputTokens } = trace.requestAt(index);
        const parts = Array.from(hashIds, (id, at) => ({
          seed: seedOf(seed, 3, id),
          numTokens: trace.tokensOfBlock(inputTokens, at),
        }));
        return { prompt: maker.make(parts), promptTokens: inputTokens, outputTokens };
      },
    }),
  };
}
