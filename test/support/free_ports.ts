/** Ports of the loopback that nobody listens at, for servers that cannot pick their own. */
import { once } from 'node:events';
import { createServer, type AddressInfo } from 'node:net';

/** Returns so many ports that nobody listens at, all different. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer().listen(0, '127.0.0.1'));
  await Promise.all(servers.map((server) => once(server, 'listening')));
  const ports = servers.map((server) => (server.address() as AddressInfo).port);
  await Promise.all(servers.map((server) => once(server.close(), 'close')));
  return ports;
}

/** Returns a port that nobody listens at, nor at so many after it. */
export async function freePortRow(count: number): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const first = await freePort();
    const servers = Array.from({ length: count }, (_, i) => createServer().listen(first + i, '127.0.0.1'));
    const bound = await Promise.allSettled(servers.map((server) => once(server, 'listening')));
    const listening = servers.filter((server) => server.listening);
    await Promise.all(listening.map((server) => once(server.close(), 'close')));
    if (bound.every(({ status }) => status === 'fulfilled')) return first;
  }
  throw new Error(`no ${count} ports in a row are free`);
}

/** Returns a port that nobody listens at. */
export async function freePort(): Promise<number> {
  return (await freePorts(1))[0]!;
}
