/**
 * The Host of requests that come over the loopback: a web page whose name has been made to lead to this machine (DNS rebinding) is the router's own
 * to its browser, and only the name tells.
 */

/** Names that no one can register, so that they lead where their owner wants: those without a dot, and names of local networks. */
const LOCAL_NAME = /^[^.]*$|\.(localhost|local|internal|lan|home\.arpa)$/;

/** Addresses; a name whose last part is a number is none that DNS has. */
const ADDRESS = /^[\da-f:]*:[\da-f:.]*$|^\d+(\.\d+){3}$/;

/** Returns why a request to a server at `localAddress` is refused for its host, and what to do; undefined for one that is allowed. */
export function hostRefusal(
  host: string,
  localAddress: string | undefined,
  listed: ReadonlySet<string>,
): string | undefined {
  const name = nameOf(host);
  if (!isLoopback(localAddress) || ADDRESS.test(name) || LOCAL_NAME.test(name) || listed.has(name)) return undefined;
  const shown = JSON.stringify(name.slice(0, 128));
  return `the Host header names ${shown}, which may lead to this machine without its owner's will: ask for localhost, or list the origin that has this name in --allowed-origins of the router (a proxy on this machine may pass the name on)`;
}

/** Returns the name of a host without its port, and without the brackets of an IPv6 address. */
export function nameOf(host: string): string {
  const found = /^(?:\[([^\]]*)\]|([^:@/\s]*))(?::\d*)?$/.exec(host.trim().toLowerCase());
  const isHost = found !== null;
  const [, address, name = ''] = found ?? [];
  // A text that is no host is no name that is allowed either.
  return (isHost ? (address ?? name) : `.${host}.`).replace(/\.$/, '');
}

function isLoopback(address = ''): boolean {
  return address === '::1' || /^(::ffff:)?127\./.test(address);
}
