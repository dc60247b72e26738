/** Calls as the one who serves them sees them: requests and replies as async iterables, the caller's loss as a signal. */
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

/** A caller that opens a call says what it wants at once. */
const START_TIMEOUT_MS = 10_000;
/** Requests read ahead of whoever serves them (P1); the transport holds back the rest. */
const MAX_AHEAD = 16;

type Cancellable = Pick<ServerDuplexStream<object, object>, 'cancelled' | 'getPeer'> & {
  on(event: 'cancelled', listener: () => void): unknown;
};

function leftOf(call: Cancellable): AbortController {
  const left = new AbortController();
  // One listener per thing that is done for the caller, gone with the call.
  setMaxListeners(0, left.signal);
  call.on('cancelled', () => {
    left.abort();
  });
  if (call.cancelled) left.abort();
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
        left.abort();
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
        requests.end(new Failure('invalid_request', `a call says what it wants within ${START_TIMEOUT_MS} ms`));
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

/** Until the last reply, a failure or the caller's loss; a call that was lost has nobody to be told. */
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

/** One reply in flight: streams count messages, not bytes, so their own back-pressure would come 16 slices late. */
function written(call: Writable, reply: object, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const done = (error?: Error | null): void => {
      signal.removeEventListener('abort', leave);
      if (error) reject(error);
      else resolve();
    };
    // A caller that left takes nothing: whoever serves it sees the same signal.
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
