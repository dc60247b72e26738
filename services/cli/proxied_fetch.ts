/**
 * `fetch` for hosts outside the cluster, through the proxy that the environment names. The variables are those of Hugging Face's own
 * clients.
 */
import type { Fetch } from '../../shared/hub/download.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the value of a variable by its lower-case name, else by its upper-case name, as curl does. */
function valueOf(environment: Environment, name: string): string {
  return environment[name] || environment[name.toUpperCase()] || '';
}

/** Returns the proxy as a URL. Without a scheme the proxy speaks HTTP, as for curl. */
function withScheme(proxy: string): string {
  return proxy === '' || /^[a-z][a-z\d+.-]*:\/\//i.test(proxy) ? proxy : `http://${proxy}`;
}

/** Returns the proxy when its scheme is http or https, else an empty string. */
function usable(proxy: string): string {
  return /^https?:\/\//i.test(proxy) ? proxy : '';
}

/**
 * Returns Node's own `fetch` when no proxy is set, else one that uses the proxy. The first request loads the library. A request fails
 * when its proxy is neither http:// nor https://.
 */
export function proxiedFetch(environment: Environment): Fetch {
  const all = valueOf(environment, 'all_proxy');
  const httpProxy = withScheme(valueOf(environment, 'http_proxy') || all);
  const httpsProxy = withScheme(valueOf(environment, 'https_proxy') || all);
  if (httpProxy === '' && httpsProxy === '') return globalThis.fetch;
  const open = async (): Promise<Fetch> => {
    const { EnvHttpProxyAgent, fetch } = await import('undici');
    // An empty string means no proxy; EnvHttpProxyAgent would read an undefined value from the environment again.
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
        `the proxy ${proxy} is not supported: set the proxy variable to http://HOST:PORT or https://HOST:PORT`,
      );
    return (await (opened ??= open()))(input, init);
  };
}
