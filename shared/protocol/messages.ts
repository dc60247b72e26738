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

export type BusMessage = Message<BusFrameMessage>;
export type DecodeReply = Message<DecodeReplyMessage>;
export type DecodeRequest = Message<DecodeRequestMessage>;
export type DecodeStart = Message<DecodeStartMessage>;
export type DescribePage = Message<DescribePageMessage>;
export type { DescribeRequest } from './generated/penstock/DescribeRequest.ts';
export type { DrainReply } from './generated/penstock/DrainReply.ts';
export type { DrainRequest } from './generated/penstock/DrainRequest.ts';
export type { SnapshotRequest } from './generated/penstock/SnapshotRequest.ts';
export type FetchReply = Message<FetchReplyMessage>;
export type FetchRequest = Message<FetchRequestMessage>;
export type ChannelRequest = Message<ChannelRequestMessage>;
export type ChannelReply = Message<ChannelReplyMessage>;
export type MoreSources = Message<MoreSourcesMessage>;
export type OfferReply = Message<OfferReplyMessage>;
export type OfferRequest = Message<OfferRequestMessage>;
export type PrefillReply = Message<PrefillReplyMessage>;
export type PrefillRequest = Message<PrefillRequestMessage>;
export type Report = Message<ReportMessage>;
export type RequestContext = Message<RequestContextMessage>;
export type RequestMessage = Message<RequestOfProto>;
export type SamplingMessage = Message<SamplingOfProto>;
export type SnapshotPage = Message<SnapshotPageMessage>;
export type Source = Message<SourceMessage>;
export type SampledMessage = Message<Sampled>;

/** Of a FetchReply that is not of one frame. */
export const noFrame: Pick<FetchReply, 'frame' | 'frameHeaders'> = { frame: 0, frameHeaders: Buffer.alloc(0) };

export { _penstock_BusMessage_Kind as BusKind } from './generated/penstock/BusMessage.ts';
