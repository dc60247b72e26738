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

/** Node's own `fetch` where no proxy is named. The library is loaded by the first fetch, and another kind of proxy is refused by it. */
export function proxiedFetch(environment: Environment): Fetch {
  const all = valueOf(environment, 'all_proxy');
  const httpProxy = withScheme(valueOf(environment, 'http_proxy') || all);
  const httpsProxy = withScheme(valueOf(environment, 'https_proxy') || all);
  if (httpProxy === '' && httpsProxy === '') return globalThis.fetch;
  const open = async (): Promise<Fetch> => {
    const { EnvHttpProxyAgent, fetch } = await import('undici');
    // An empty text is no proxy; what is undefined would be read from the environment again.
    const proxies = { httpProxy: usable(httpProxy), httpsProxy: usable(httpsProxy) };
    const dispatcher = new EnvHttpProxyAgent({ ...proxies, noProxy: valueOf(environment, 'no_proxy') });
    const proxied = (...[input, init]: Parameters<typeof fetch>): ReturnType<typeof fetch> =>
      fetch(input, { ...init, dispatcher });
    return proxied as unknown as Fetch;
  };
  let opened: Promise<Fetch> | undefined;
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input);
    const proxy = url.protocol === 'http:' ? httpProxy : httpsProxy;
    if (proxy !== usable(proxy))
      throw new Error(
        `the proxy ${proxy} is none that models are fetched through: http://HOST:PORT or https://HOST:PORT`,
      );
    return (await (opened ??= open()))(input, init);
  };
}
