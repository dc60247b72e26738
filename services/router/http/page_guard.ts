/**
 * Keeps the router from web pages of other origins where CORS does not. Pages whose name has been made to lead to this machine (DNS rebinding),
 * which the browser takes for the router's own, get nothing at all: on the loopback every route takes only names that nobody else can own, and
 * those that are listed. Pages that only load `/api/*`, for instance as an image, cannot read the answer but make the router work. Programs
 * other than browsers are not concerned.
 */
import type { IncomingMessage } from 'node:http';
import { isInside } from './cors.ts';

/** Names that no one can register, so that they lead where their owner wants: those without a dot, and names of local networks. */
const LOCAL_NAME = /^[^.]*$|\.(localhost|local|internal|lan|home\.arpa)$/;

/** Addresses; a name whose last part is a number is none that DNS has. */
const ADDRESS = /^[\da-f:]*:[\da-f:.]*$|^\d+(\.\d+){3}$/;

/** The part of a request that a guard looks at. */
type Asked = Pick<IncomingMessage, 'url' | 'headers'> & {
  readonly socket: { readonly localAddress?: string | undefined };
};

/** Guard of one router, from its `allowed_origins` option. */
export class PageGuard {
  readonly #origins: ReadonlySet<string>;
  readonly #hosts: ReadonlySet<string>;

  /** `origins`: value of `allowed_origins`, separated by commas. `*` lists nobody. */
  constructor(origins: string) {
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
    if (isInside(url) && isOfOther && !isOpened && !this.#origins.has(origin.toLowerCase()))
      return 'a page of another origin asks for this: list its origin in --allowed-origins of the router';
    const name = nameOf(host);
    if (!isLoopback(socket.localAddress) || ADDRESS.test(name) || LOCAL_NAME.test(name) || this.#hosts.has(name))
      return undefined;
    const shown = JSON.stringify(name.slice(0, 128));
    return `the Host header names ${shown}, which may lead to this machine without its owner's will: ask for localhost, or list the origin that has this name in --allowed-origins of the router (a proxy on this machine may pass the name on)`;
  }
}

/** Returns the name of a host without its port, and without the brackets of an IPv6 address. */
function nameOf(host: string): string {
  const found = /^(?:\[([^\]]*)\]|([^:@/\s]*))(?::\d*)?$/.exec(host.trim().toLowerCase());
  const isHost = found !== null;
  const [, address, name = ''] = found ?? [];
  // A text that is no host is no name that is allowed either.
  return (isHost ? (address ?? name) : `.${host}.`).replace(/\.$/, '');
}

function isLoopback(address = ''): boolean {
  return address === '::1' || /^(::ffff:)?127\./.test(address);
}
