/** The calls as penstock.proto defines them, and how each travels. */
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { loadPackageDefinition, type MethodDefinition, type ServiceDefinition } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { service as health } from 'grpc-health-check';
import type { CallName } from '../network.ts';

const definition = loadSync(fileURLToPath(new URL('../../protocol/penstock.proto', import.meta.url)), {
  longs: Number,
  enums: Number,
  defaults: true,
  oneofs: true,
});
const loaded = loadPackageDefinition(definition)['penstock'] as unknown as Record<
  ServiceName,
  { service: ServiceDefinition }
>;

type ServiceName = 'Blocks' | 'Embed' | 'Decode' | 'Admin' | 'Hub' | 'Health';

/** How a call travels. */
export interface Wire {
  readonly service: ServiceName;
  readonly method: string;
  readonly kind: 'unary' | 'duplex';
  /** For a duplex call: field of the first message that holds the request. `cancel` below is the message that ends the call. */
  readonly startsWith?: 'start';
  readonly cancel?: object;
}

/** Wire form of every call: its gRPC service and method, its kind, and how it starts and is cancelled. */
export const wires: Record<CallName, Wire> = {
  fetch: { service: 'Blocks', method: 'Fetch', kind: 'duplex', startsWith: 'start', cancel: { cancel: {} } },
  openChannel: { service: 'Blocks', method: 'OpenChannel', kind: 'unary' },
  offer: { service: 'Blocks', method: 'Offer', kind: 'unary' },
  snapshot: { service: 'Blocks', method: 'Snapshot', kind: 'duplex', startsWith: 'start', cancel: { cancel: {} } },
  embed: { service: 'Embed', method: 'Embed', kind: 'duplex', startsWith: 'start', cancel: { cancel: {} } },
  // A router ends the stream by ending its requests; a cancel message is about one call.
  decode: { service: 'Decode', method: 'Decode', kind: 'duplex' },
  drain: { service: 'Admin', method: 'Drain', kind: 'unary' },
  describe: { service: 'Admin', method: 'Describe', kind: 'duplex', startsWith: 'start', cancel: { cancel: {} } },
  policy: { service: 'Admin', method: 'Policy', kind: 'unary' },
  forget: { service: 'Admin', method: 'Forget', kind: 'unary' },
  connect: { service: 'Hub', method: 'Connect', kind: 'duplex' },
  // Served by the library's own implementation.
  check: { service: 'Health', method: 'Check', kind: 'unary' },
};

/** Returns the gRPC definition of a service, from penstock.proto or, for Health, from the health check library. */
export function serviceOf(name: ServiceName): ServiceDefinition {
  return name === 'Health' ? health : loaded[name].service;
}

/** Returns the definition of a call's method in its service. @throws AssertionError when the service has no such method. */
export function methodOf({ service, method }: Wire): MethodDefinition<object, object> {
  const found = serviceOf(service)[method] as MethodDefinition<object, object> | undefined;
  assert(found, `there is no ${service}.${method}`);
  return found;
}
