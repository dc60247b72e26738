/** Typed clients for the calls of penstock.proto, so that message types are named in one place. */
import type {
  ClientDuplexStream,
  ClientReadableStream,
  MethodDefinition,
  ServerDuplexStream,
  ServerWritableStream,
  ServiceDefinition,
} from '@grpc/grpc-js';
import assert from 'node:assert/strict';
import type {
  BusFrame,
  DecodeReply,
  DecodeRequest,
  DecodeStart,
  FetchReply,
  FetchRequest,
  OfferReply,
  OfferRequest,
  PrefillReply,
  PrefillRequest,
  SnapshotPage,
  Started,
} from './messages.ts';
import { OpenCall } from './open_call.ts';
import { services, toFailure, type Peers } from './rpc.ts';

export type FetchCall = ServerDuplexStream<Started<FetchRequest>, FetchReply>;
export type SnapshotCall = ServerWritableStream<object, SnapshotPage>;
export type PrefillCall = ServerDuplexStream<Started<PrefillRequest>, PrefillReply>;
export type DecodeCall = ServerDuplexStream<DecodeRequest, DecodeReply>;
export type HubCall = ServerDuplexStream<BusFrame, BusFrame>;

function method<Q, R>(service: ServiceDefinition, name: string): MethodDefinition<Q, R> {
  const found = service[name] as MethodDefinition<Q, R> | undefined;
  assert(found, `penstock.proto has no ${name}`);
  return found;
}

const fetchMethod = method<Started<FetchRequest>, FetchReply>(services.blocks, 'Fetch');
const offerMethod = method<OfferRequest, OfferReply>(services.blocks, 'Offer');
const snapshotMethod = method<object, SnapshotPage>(services.blocks, 'Snapshot');
const prefillMethod = method<Started<PrefillRequest>, PrefillReply>(services.prefill, 'Prefill');
const decodeMethod = method<DecodeRequest, DecodeReply>(services.decode, 'Decode');
const hubMethod = method<BusFrame, BusFrame>(services.hub, 'Connect');
const drainMethod = method<object, object>(services.admin, 'Drain');

function serverStream<Q, R>(
  peers: Peers,
  address: string,
  { path, requestSerialize, responseDeserialize }: MethodDefinition<Q, R>,
  request: Q,
  timeoutMs: number,
): ClientReadableStream<R> {
  return peers
    .client(address)
    .makeServerStreamRequest(
      path,
      requestSerialize,
      responseDeserialize,
      request,
      peers.metadata(),
      peers.deadline(timeoutMs),
    );
}

function unary<Q, R>(
  peers: Peers,
  address: string,
  { path, requestSerialize, responseDeserialize }: MethodDefinition<Q, R>,
  request: Q,
  timeoutMs: number,
): Promise<R> {
  return new Promise((resolve, reject) => {
    peers
      .client(address)
      .makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        request,
        peers.metadata(),
        peers.deadline(timeoutMs),
        (error, reply) => {
          if (error) reject(toFailure(error, address));
          else resolve(reply as R);
        },
      );
  });
}

function duplex<Q, R>(
  peers: Peers,
  address: string,
  { path, requestSerialize, responseDeserialize }: MethodDefinition<Q, R>,
  timeoutMs: number | undefined,
): ClientDuplexStream<Q, R> {
  const options = timeoutMs === undefined ? {} : peers.deadline(timeoutMs);
  return peers
    .client(address)
    .makeBidiStreamRequest(path, requestSerialize, responseDeserialize, peers.metadata(), options);
}

/** A call that is started at once and can be left by a message. */
function started<Q, R>(
  peers: Peers,
  address: string,
  definition: MethodDefinition<Q, R>,
  first: Q,
  cancel: Q,
  timeoutMs: number,
): OpenCall<Q, R> {
  const call = new OpenCall<Q, R>(duplex(peers, address, definition, timeoutMs), cancel, peers.clock, address);
  call.send(first);
  return call;
}

export function fetchBlocks(
  peers: Peers,
  address: string,
  request: FetchRequest,
  timeoutMs: number,
): OpenCall<Started<FetchRequest>, FetchReply> {
  return started(peers, address, fetchMethod, { start: request }, { cancel: {} }, timeoutMs);
}

export function offerBlocks(
  peers: Peers,
  address: string,
  request: OfferRequest,
  timeoutMs: number,
): Promise<OfferReply> {
  return unary(peers, address, offerMethod, request, timeoutMs);
}

export function snapshotBlocks(peers: Peers, address: string, timeoutMs: number): ClientReadableStream<SnapshotPage> {
  return serverStream(peers, address, snapshotMethod, {}, timeoutMs);
}

export function prefill(
  peers: Peers,
  address: string,
  request: PrefillRequest,
  timeoutMs: number,
): OpenCall<Started<PrefillRequest>, PrefillReply> {
  return started(peers, address, prefillMethod, { start: request }, { cancel: {} }, timeoutMs);
}

export function decode(
  peers: Peers,
  address: string,
  start: DecodeStart,
  timeoutMs: number,
): OpenCall<DecodeRequest, DecodeReply> {
  return started(peers, address, decodeMethod, { start }, { cancel: {} }, timeoutMs);
}

/** The one call without a deadline: it lives as long as the process does. */
export function connectHub(peers: Peers, address: string): ClientDuplexStream<BusFrame, BusFrame> {
  return duplex(peers, address, hubMethod, undefined);
}

export function drain(peers: Peers, address: string, timeoutMs: number): Promise<object> {
  return unary(peers, address, drainMethod, {}, timeoutMs);
}
