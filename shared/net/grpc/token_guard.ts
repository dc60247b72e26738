/** The cluster token on calls: every client sends it, every server asks for it. */
import { Metadata, ServerInterceptingCall, status, type ServerInterceptor } from '@grpc/grpc-js';
import { isSameSecret, sentToken, takenTokens } from '../../base/cluster_tokens.ts';
import type { Current } from '../../base/current.ts';

const TOKEN_KEY = 'penstock-token';

/** Returns the metadata of a call that begins now. */
export function withToken(tokens: Current<string>): Metadata {
  const metadata = new Metadata();
  metadata.set(TOKEN_KEY, sentToken(tokens.value));
  return metadata;
}

/** Returns what refuses calls that have none of the tokens which are taken at that time. */
export function requireToken(tokens: Current<string>): ServerInterceptor {
  const bytesOf = (all: string): readonly Buffer[] => takenTokens(all).map((token) => Buffer.from(token));
  let [texts, taken] = [tokens.value, bytesOf(tokens.value)];
  const takenNow = (): readonly Buffer[] => {
    if (texts !== tokens.value) [texts, taken] = [tokens.value, bytesOf(tokens.value)];
    return taken;
  };
  return (_method, call) =>
    new ServerInterceptingCall(call, {
      start: (next) => {
        next({
          onReceiveMetadata: (metadata, proceed) => {
            const given = Buffer.from(String(metadata.get(TOKEN_KEY)[0] ?? ''));
            if (takenNow().some((one) => isSameSecret(given, one))) {
              proceed(metadata);
              return;
            }
            call.sendStatus({
              code: status.UNAUTHENTICATED,
              details: 'wrong cluster token: every process of a cluster needs the same PENSTOCK_CLUSTER_TOKEN',
              metadata: new Metadata(),
            });
          },
        });
      },
    });
}
