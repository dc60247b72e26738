/** A network whose every address is one peer, which the test plays. */
import assert from 'node:assert/strict';
import type { CallName, Handlers, Network, Reply, ServedCall } from '../../shared/net/network.ts';

type AnyHandler = (requests: AsyncIterable<object>, call: ServedCall) => AsyncIterable<object>;

export function playedNetwork(handlers: Handlers): Network {
  return {
    listen: () => assert.fail('nobody listens here'),
    open: <M extends CallName>(
      _address: string,
      name: M,
      requests: AsyncIterable<object>,
      call: { signal: AbortSignal },
    ) => {
      const handler = handlers[name] as unknown as AnyHandler | undefined;
      assert(handler, `nobody plays ${name}`);
      const replies = handler(requests, { signal: call.signal, caller: 'test' });
      return replies as unknown as AsyncIterableIterator<Reply<M>>;
    },
    hostTowards: () => Promise.resolve('127.0.0.1'),
    forget: () => undefined,
    close: () => undefined,
  };
}
