/** The messages of penstock.proto as TypeScript sees them. Optional fields may be left out when sending, never when received. */

/** Raised when a message changes its meaning; registration compares it. */
export const PROTOCOL_VERSION = 2;

export interface RequestContext {
  readonly requestId: string;
  readonly tenant: string;
  readonly priority: number;
  readonly timeoutMs: number;
  readonly traceId: string;
}

export interface FetchRequest {
  readonly context: RequestContext | null;
  readonly namespace: Buffer;
  readonly links: Buffer;
  readonly waitMs: number;
}

/** A call's first message is its start; a cancel may follow, and the server then ends the stream. */
export type Started<Start> = { readonly start: Start } | { readonly cancel: object };

export interface FetchReply {
  readonly index: number;
  readonly offset: number;
  readonly totalBytes: number;
  readonly data: Buffer;
}

export interface OfferRequest {
  readonly context: RequestContext | null;
  readonly namespace: Buffer;
  readonly links: Buffer;
  readonly recordBytes: number;
  readonly source: string;
}

export interface OfferReply {
  readonly stored: number;
  readonly held: number;
  readonly durable: number;
}

export interface SnapshotPage {
  readonly epoch: string;
  readonly sequence: number;
  readonly tier: number;
  readonly keys: Buffer;
}

export interface Source {
  readonly address: string;
  readonly start: number;
  readonly end: number;
  readonly isComputing: boolean;
}

export interface Report {
  readonly cachedTokens: number;
  readonly fetchedTokens: number;
  readonly computedTokens: number;
  readonly queueMs: number;
  readonly loadMs: number;
  readonly computeMs: number;
  readonly fetchedBytes: number;
}

export interface PrefillRequest {
  readonly context: RequestContext | null;
  readonly namespace: Buffer;
  readonly tokens: Buffer;
  readonly lastDigest: Buffer;
  readonly sources: readonly Source[];
}

export interface PrefillReply {
  readonly numReady: number;
  readonly numRun: number;
  readonly report: Report | null;
}

export interface SamplingMessage {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly presencePenalty: number;
  readonly frequencyPenalty: number;
  readonly repetitionPenalty: number;
  readonly biasTokens: readonly number[];
  readonly biasValues: readonly number[];
  readonly seed: number;
  readonly numLogprobs: number;
  readonly minTokens: number;
}

export interface DecodeStart {
  readonly context: RequestContext | null;
  readonly namespace: Buffer;
  readonly tokens: Buffer;
  readonly promptLength: number;
  readonly maxLength: number;
  readonly lastDigest: Buffer;
  readonly stopTokenIds: readonly number[];
  readonly sampling: SamplingMessage | null;
  readonly sources: readonly Source[];
  readonly maxSelfCompute: number;
}

export interface MoreSources {
  readonly sources: readonly Source[];
  readonly maxSelfCompute: number;
}

interface GiveUp {
  readonly round: number;
}

export type DecodeRequest = Started<DecodeStart> | { readonly more: MoreSources } | { readonly giveUp: GiveUp };

export interface TokenMessage {
  readonly id: number;
  readonly logprob: readonly number[];
  readonly topIds: readonly number[];
  readonly topLogprobs: readonly number[];
  readonly position: number;
}

interface MissingFrom {
  readonly block: number;
  readonly reason: string;
}

export interface DecodeReply {
  readonly token?: TokenMessage | null;
  readonly missing?: MissingFrom | null;
  readonly report: Report | null;
  readonly finishReason: string;
}

export const BusKind = { publish: 0, subscribe: 1, request: 2, reply: 3, error: 4, serve: 5 } as const;

export interface BusFrame {
  readonly kind: number;
  readonly subject: string;
  readonly payload: Buffer;
  readonly id: number;
}
