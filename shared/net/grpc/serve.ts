/** Server's side of gRPC calls: requests and replies are async iterables, and the loss of the caller aborts a signal. */
import { setMaxListeners } from 'node:events';
import type { ServerDuplexStream, ServerUnaryCall, UntypedServiceImplementation } from '@grpc/grpc-js';
import type { Clock } from '../../base/clock.ts';
import { Failure } from '../../base/failure.ts';
import { AsyncQueue } from '../../base/async_queue.ts';
import type { ServedCall } from '../network.ts';
import { toStatus } from './status.ts';
import type { Wire } from './wire.ts';
import { DONE } from '../../base/signal.ts';

/** Handler of any call, with its message types erased. */
export type AnyHandler = (requests: AsyncIterable<object>, call: ServedCall) => AsyncIterable<object>;
type GrpcHandler = UntypedServiceImplementation[string];

/** Milliseconds within which a caller must send the request of a call that it has opened. */
const START_TIMEOUT_MS = 10_000;
/** Requests read ahead of the handler (P1); the transport holds back the rest. */
const MAX_AHEAD = 16;

type Cancellable = Pick<ServerDuplexStream<object, object>, 'cancelled' | 'getPeer'> & {
  on(event: 'cancelled', listener: () => void): unknown;
};

function leftOf(call: Cancellable): AbortController {
  const left = new AbortController();
  // Each task of the call adds a listener, and all are dropped with the call: Node's warning about many listeners is switched off.
  setMaxListeners(0, left.signal);
  call.on('cancelled', () => {
    left.abort(DONE);
  });
  if (call.cancelled) left.abort(DONE);
  return left;
}

/** Adapts a handler to a unary gRPC method. The reply is the handler's last value; a failure becomes a gRPC status. */
export function serveUnary(handler: AnyHandler): GrpcHandler {
  return (call: ServerUnaryCall<object, object>, reply: (error: object | null, value?: object) => void) => {
    const run = async (): Promise<void> => {
      let last: object = {};
      for await (const value of handler(one(call.request), { signal: leftOf(call).signal, caller: call.getPeer() })) {
        last = value;
      }
      reply(null, last);
    };
    run().catch((error: unknown) => {
      reply(toStatus(error));
    });
  };
}

/**
 * Adapts a handler to a duplex gRPC method. A cancel message or a lost caller aborts the handler's signal. A call without a start
 * within START_TIMEOUT_MS fails with `invalid_request`.
 */
export function serveDuplex(wire: Wire, handler: AnyHandler, clock: Clock): GrpcHandler {
  return (call: ServerDuplexStream<object, object>) => {
    const left = leftOf(call);
    const hasStarted = new AbortController();
    const requests = new AsyncQueue<object>(() => {
      if (requests.size < MAX_AHEAD) call.resume();
    });
    call.on('data', (message: Partial<Record<string, object>>) => {
      hasStarted.abort(DONE);
      if (wire.cancel && 'cancel' in message) {
        left.abort(DONE);
        return;
      }
      const request = wire.startsWith ? message[wire.startsWith] : message;
      if (request) requests.push(request);
      if (requests.size >= MAX_AHEAD) call.pause();
    });
    call.on('end', () => {
      hasStarted.abort(DONE);
      requests.end();
    });
    left.signal.addEventListener('abort', () => {
      requests.end();
    });
    if (wire.startsWith) {
      void clock.sleep(START_TIMEOUT_MS, AbortSignal.any([hasStarted.signal, left.signal])).then(() => {
        if (hasStarted.signal.aborted) return;
        requests.end(
          new Failure('invalid_request', `the first message of a call must arrive within ${START_TIMEOUT_MS} ms`),
        );
      });
    }
    void sendAll(call, () => handler(requests, { signal: left.signal, caller: call.getPeer() }), left.signal).then(
      () => {
        // Input that the caller still sends is read and dropped, so that the stream can end.
        void requests.return();
        call.resume();
      },
    );
  };
}

type Writable = Pick<ServerDuplexStream<object, object>, 'cancelled' | 'end' | 'write' | 'emit'>;

/** Sends the handler's replies until the last one, a failure, or the loss of the caller. A lost caller gets no status. */
async function sendAll(call: Writable, serve: () => AsyncIterable<object>, signal: AbortSignal): Promise<void> {
  try {
    for await (const reply of serve()) {
      if (signal.aborted) break;
      await written(call, reply, signal);
    }
    if (!call.cancelled) call.end();
  } catch (error) {
    if (!call.cancelled) call.emit('error', toStatus(error));
  }
}

/**
 * Writes one reply; resolves when it is sent or the caller has left. Only one reply is in flight, because streams count messages, not
 * bytes, so their own back-pressure would come 16 slices late.
 */
function written(call: Writable, reply: object, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = (error?: Error | null): void => {
      signal.removeEventListener('abort', leave);
      if (error) reject(error);
      else resolve();
    };
    // A caller that left never drains the stream; the handler stops by the same signal.
    const leave = (): void => {
      done();
    };
    signal.addEventListener('abort', leave);
    call.write(reply, done);
    if (signal.aborted) leave();
  });
}

async function* one(request: object): AsyncGenerator<object> {
  yield request;
}
