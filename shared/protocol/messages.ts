/**
 * The messages of penstock.proto as TypeScript sees them, made from it by `npm run build`: every field is there, a message that was
 * left out is null, and of a oneof the field that was sent is there alone. Nobody changes a message.
 */
import type { BusMessage as BusFrameMessage } from './generated/penstock/BusMessage.ts';
import type { DecodeReply as DecodeReplyMessage } from './generated/penstock/DecodeReply.ts';
import type { DecodeRequest as DecodeRequestMessage } from './generated/penstock/DecodeRequest.ts';
import type { DecodeStart as DecodeStartMessage } from './generated/penstock/DecodeStart.ts';
import type { DescribePage as DescribePageMessage } from './generated/penstock/DescribePage.ts';
import type { FetchReply as FetchReplyMessage } from './generated/penstock/FetchReply.ts';
import type { FetchRequest as FetchRequestMessage } from './generated/penstock/FetchRequest.ts';
import type { ChannelRequest as ChannelRequestMessage } from './generated/penstock/ChannelRequest.ts';
import type { ChannelReply as ChannelReplyMessage } from './generated/penstock/ChannelReply.ts';
import type { MoreSources as MoreSourcesMessage } from './generated/penstock/MoreSources.ts';
import type { OfferReply as OfferReplyMessage } from './generated/penstock/OfferReply.ts';
import type { OfferRequest as OfferRequestMessage } from './generated/penstock/OfferRequest.ts';
import type { PrefillReply as PrefillReplyMessage } from './generated/penstock/PrefillReply.ts';
import type { PrefillRequest as PrefillRequestMessage } from './generated/penstock/PrefillRequest.ts';
import type { Report as ReportMessage } from './generated/penstock/Report.ts';
import type { Request as RequestOfProto } from './generated/penstock/Request.ts';
import type { RequestContext as RequestContextMessage } from './generated/penstock/RequestContext.ts';
import type { Sampling as SamplingOfProto } from './generated/penstock/Sampling.ts';
import type { SnapshotPage as SnapshotPageMessage } from './generated/penstock/SnapshotPage.ts';
import type { Sampled } from './generated/penstock/Sampled.ts';
import type { Source as SourceMessage } from './generated/penstock/Source.ts';

/** Raised when a message changes its meaning; registration compares it. */
export const PROTOCOL_VERSION = 13;

type Message<T> = T extends Buffer
  ? T
  : T extends (infer Item)[]
    ? readonly Message<Item>[]
    : T extends object
      ? { readonly [K in keyof T]: Message<T[K]> }
      : T;

/** Message of a process's stream to or from the hub of the embedded bus. */
export type BusMessage = Message<BusFrameMessage>;
/** Message of a decode instance to its router: sampled tokens, missing blocks, log-probabilities of the prompt, or a finish reason. */
export type DecodeReply = Message<DecodeReplyMessage>;
/** Message of a router to a decode instance: the start of a call, more sources, a give-up or a cancel. */
export type DecodeRequest = Message<DecodeRequestMessage>;
/** First message of a decode call: the request with its tokens, and the sources of its blocks. */
export type DecodeStart = Message<DecodeStartMessage>;
/** Part of an engine's description, which is one JSON text; see model_facts.ts. */
export type DescribePage = Message<DescribePageMessage>;
export type { DescribeRequest } from './generated/penstock/DescribeRequest.ts';
export type { DrainReply } from './generated/penstock/DrainReply.ts';
export type { DrainRequest } from './generated/penstock/DrainRequest.ts';
export type { SnapshotRequest } from './generated/penstock/SnapshotRequest.ts';
/** Part of a fetch: a slice of a record, or a notice that records, or a frame of them, are ready on the channel. */
export type FetchReply = Message<FetchReplyMessage>;
/** Request for records of a run of blocks, over the call or over a data channel. */
export type FetchRequest = Message<FetchRequestMessage>;
/** Request to open a data channel. */
export type ChannelRequest = Message<ChannelRequestMessage>;
/** Answer to a ChannelRequest: port and token of a data channel, and the name of shared memory where there is some. */
export type ChannelReply = Message<ChannelReplyMessage>;
/** Answer to missing blocks: other sources, and how many tokens the instance may compute itself. */
export type MoreSources = Message<MoreSourcesMessage>;
/** Answer of a store to an offer: how many blocks it fetched, held already, and has on disk. */
export type OfferReply = Message<OfferReplyMessage>;
/** Offer of blocks to a store, which fetches the ones that it lacks. */
export type OfferRequest = Message<OfferRequestMessage>;
/** Progress of a prefill call, with a report in the last message. */
export type PrefillReply = Message<PrefillReplyMessage>;
/** Prompt that a prefill instance computes, and the sources of blocks that exist already. */
export type PrefillRequest = Message<PrefillRequestMessage>;
/** Tokens, bytes and milliseconds that an instance spent on a call. */
export type Report = Message<ReportMessage>;
/** Properties that every call carries: ids, tenant, priority, deadline and placement. */
export type RequestContext = Message<RequestContextMessage>;
/** A client's request to the engines for one prompt, as on the wire. */
export type RequestMessage = Message<RequestOfProto>;
/** Sampling parameters of a request, as on the wire. */
export type SamplingMessage = Message<SamplingOfProto>;
/** Page of a holder's list of blocks, with the event sequence number that the list contains. */
export type SnapshotPage = Message<SnapshotPageMessage>;
/** Address of a holder of a run of a request's blocks. */
export type Source = Message<SourceMessage>;
/** Token of the output, or of the prompt with its log-probabilities, as on the wire. */
export type SampledMessage = Message<Sampled>;

/** Fields of a FetchReply that does not announce a single frame. */
export const noFrame: Pick<FetchReply, 'frame' | 'frameHeaders'> = { frame: 0, frameHeaders: Buffer.alloc(0) };

export { _penstock_BusMessage_Kind as BusKind } from './generated/penstock/BusMessage.ts';
