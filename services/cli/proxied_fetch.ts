/** `fetch` for what lies outside a cluster: through the proxy that the environment names, as Hugging Face's own clients go. */
import type { Fetch } from '../../shared/hub/download.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** The value of a variable in small letters, or in capitals: curl's order. */
function valueOf(environment: Environment, name: string): string {
  return environment[name] || environment[name.toUpperCase()] || '';
}

/** A proxy as a URL; without a scheme it is HTTP's, as for curl. */
function withScheme(proxy: string): string {
  return proxy === '' || /^[a-z][a-z\d+.-]*:\/\//i.test(proxy) ? proxy : `http://${proxy}`;
}

/** A proxy that can be used, or an empty text. */
function usable(proxy: string): string {
  return /^https?:\/\//i.test(proxy) ? proxy : '';
}

/** As {@link proxiedFetch}, which is made when it is first called: who has a model already needs no proxy, and no word about it. */
export function lazilyProxiedFetch(environment: Environment): Fetch {
  let made: Promise<Fetch> | undefined;
  return async (...request) => (await (made ??= proxiedFetch(environment)))(...request);
}

/** Node's own `fetch` where no proxy is named: its library is loaded only for one. A fetch through another kind of proxy throws. */
export async function proxiedFetch(environment: Environment): Promise<Fetch> {
  const all = valueOf(environment, 'all_proxy');
  const named = {
    'http:': withScheme(valueOf(environment, 'http_proxy') || all),
    'https:': withScheme(valueOf(environment, 'https_proxy') || all),
  };
  if (named['http:'] === '' && named['https:'] === '') return globalThis.fetch;
  const [httpProxy, httpsProxy] = [usable(named['http:']), usable(named['https:'])];
  const { EnvHttpProxyAgent, fetch } = await import('undici');
  // An empty text is no proxy; what is undefined would be read from the environment again.
  const dispatcher = new EnvHttpProxyAgent({ httpProxy, httpsProxy, noProxy: valueOf(environment, 'no_proxy') });
  const proxied = async (
    input: Parameters<typeof fetch>[0],
    init?: Parameters<typeof fetch>[1],
  ): ReturnType<typeof fetch> => {
    const url = new URL(typeof input === 'object' && 'url' in input ? input.url : input);
    const proxy = url.protocol === 'http:' ? named['http:'] : named['https:'];
    if (proxy !== usable(proxy))
      throw new Error(
        `the proxy ${proxy} is none that models are fetched through: http://HOST:PORT or https://HOST:PORT`,
      );
    return fetch(input, { ...init, dispatcher });
  };
  return proxied as unknown as Fetch;
}
