/** Either end of Decode and Prefill calls as a test plays it, call by call. */
import { systemClock } from '../../shared/base/clock.ts';
import { AsyncQueue } from '../../shared/base/async_queue.ts';
import { Failure } from '../../shared/base/failure.ts';
import { DecodeStreams, type DecodeCall } from '../../shared/net/decode/decode_stream.ts';
import { DecodeServer, type StartDecode, type StartPrefill } from '../../shared/net/decode/served_decodes.ts';
import type { Handler, Network, ServedCall } from '../../shared/net/network.ts';
import type { Finish } from '../../shared/protocol/decode_replies.ts';
import type {
  DecodeRequest,
  DecodeStart,
  MissingBlocks,
  PrefillReply,
  PrefillRequest,
  Report,
  SampledMessage,
} from '../../shared/protocol/messages.ts';

/** A reply of an instance in one call: a token, missing blocks, or tokens of the prompt. */
export interface PlayedReply {
  readonly sampled?: SampledMessage;
  /** With a token, as `report`: why it is the last one. */
  readonly finish?: Finish;
  readonly report?: Report | undefined;
  readonly missing?: MissingBlocks;
  readonly prompt?: readonly SampledMessage[];
}

/** A message of the router in a played call. */
export type PlayedRequest = Omit<DecodeRequest, 'slot'>;

/** Plays one call: reads its messages, its start first, and yields replies. When it returns before a last token the call fails. */
export type DecodePlay = (
  requests: AsyncIterableIterator<PlayedRequest>,
  signal: AbortSignal,
) => AsyncIterable<PlayedReply>;

/** Plays one Prefill call: yields replies, and ends the call with a report, or throws its failure. */
export type PrefillPlay = (request: PrefillRequest, call: ServedCall) => AsyncIterable<PrefillReply>;

/** Returns the handler of an instance whose calls are played; without `playPrefill` it refuses Prefill calls. */
export function playedDecode(play: DecodePlay, playPrefill?: PrefillPlay): Handler<'decode'> {
  const startDecode: StartDecode = (start, { signal }, output) => {
    const requests = new AsyncQueue<PlayedRequest>();
    requests.push({ start });
    signal.addEventListener('abort', () => {
      requests.end();
    });
    const run = async (): Promise<void> => {
      for await (const reply of play(requests, signal)) {
        const { missing, prompt, sampled, finish, report } = reply;
        if (missing) output.missing(missing);
        if (prompt) output.prompt(prompt);
        if (sampled) output.token(sampled, finish, report);
      }
      throw new Error('the play is over');
    };
    run().catch((error: unknown) => {
      output.fail(error);
    });
    return {
      take: (message) => {
        requests.push(message);
      },
    };
  };
  return new DecodeServer(systemClock, startDecode, playPrefill && playedPrefill(playPrefill)).handler;
}

function playedPrefill(play: PrefillPlay): StartPrefill {
  return (request, call, output) => {
    const run = async (): Promise<void> => {
      for await (const reply of play(request, call)) output.prefill(reply);
      throw new Error('the play is over');
    };
    run().catch((error: unknown) => {
      output.fail(error);
    });
  };
}

/** A call that a test makes: what it can say, and what it hears, to the last token or the failure. */
export interface PlayedCall extends DecodeCall {
  readonly replies: AsyncQueue<PlayedReply>;
}

/** Starts a Decode call at `address`. */
export function callDecode(network: Network, address: string, start: DecodeStart): PlayedCall {
  const replies = new AsyncQueue<PlayedReply>();
  const peer = { member: { address }, lost: new AbortController() };
  const call = new DecodeStreams(network).start(peer, start, {
    onMissing: (missing) => {
      replies.push({ missing });
    },
    onPrompt: (prompt) => {
      replies.push({ prompt });
    },
    onToken: (sampled, finish, report) => {
      replies.push({ sampled, finish, report });
      if (finish) replies.end();
    },
    onFailure: (failure) => {
      replies.end(failure);
    },
  });
  return {
    ...call,
    replies,
    leave: () => {
      call.leave();
      replies.end(new Failure('cancelled', 'the test left'));
    },
  };
}

/** Makes a Prefill call at `address`, and resolves with its report. @throws Failure */
export function callPrefill(network: Network, address: string, request: PrefillRequest): Promise<Report> {
  const peer = { member: { address }, lost: new AbortController() };
  return new Promise((resolve, reject) => {
    new DecodeStreams(network).prefill(peer, request, {
      onPrefill: ({ report }) => {
        if (report) resolve(report);
      },
      onFailure: reject,
    });
  });
}
