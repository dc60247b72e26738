/**
 * Keeps the router from web pages of other origins where CORS does not. Pages whose name has been made to lead to this machine (DNS rebinding),
 * which the browser takes for the router's own, get nothing at all: on the loopback every route takes only names that nobody else can own, and
 * those that are listed. Pages that only load `/api/*`, for instance as an image, cannot read the answer but make the router work. Programs
 * other than browsers are not concerned.
 */
import type { IncomingMessage } from 'node:http';
import { hostRefusal, nameOf } from '../../../shared/net/page_host.ts';
import { isInside } from './cors.ts';

/** The part of a request that a guard looks at. */
type Asked = Pick<IncomingMessage, 'url' | 'headers'> & {
  readonly socket: { readonly localAddress?: string | undefined };
};

/** Guard of one router, from its `allowed_origins` option. */
export class PageGuard {
  readonly #origins: ReadonlySet<string>;
  readonly #hosts: ReadonlySet<string>;

  readonly #clientPaths: ReadonlySet<string>;

  /** `origins`: value of `allowed_origins`, separated by commas, where `*` lists nobody; `clientPaths`: those of the API. */
  constructor(origins: string, clientPaths: ReadonlySet<string>) {
    this.#clientPaths = clientPaths;
    const listed = origins.split(',').filter((origin) => origin !== '' && origin !== '*');
    this.#origins = new Set(listed.map((origin) => origin.toLowerCase()));
    this.#hosts = new Set(listed.map((origin) => nameOf(origin.replace(/^[^/]*:\/\//, ''))));
  }

  /** Returns why a request is refused, and what to do; undefined for one that is allowed. */
  refusal({ url = '', headers, socket }: Asked): string | undefined {
    const { host = '', origin = '' } = headers;
    const { 'sec-fetch-site': site, 'sec-fetch-mode': mode, 'sec-fetch-dest': dest } = headers;
    const isOfOther = site === 'cross-site' || site === 'same-site';
    const isOpened = mode === 'navigate' && dest === 'document';
    if (isInside(url, this.#clientPaths) && isOfOther && !isOpened && !this.#origins.has(origin.toLowerCase()))
      return 'a page of another origin asks for this: list its origin in --allowed-origins of the router';
    return hostRefusal(host, socket.localAddress, this.#hosts);
  }
}
