/** Whether NATS servers take a connection, for a start that would wait for them in vain. */
import { connect } from 'nats';
import { messageOf } from '../../base/failure.ts';
import { addressesOf, connectionOptions, type NatsServers } from './nats_options.ts';

/** Connects to one of the servers, under `name`, and disconnects. @throws Error with the reason of each when none takes the connection */
export async function reachNats(servers: NatsServers, name: string): Promise<void> {
  const reasons: string[] = [];
  for (const address of addressesOf(servers)) {
    try {
      const connection = await connect({ ...connectionOptions(servers, address), name });
      await connection.close();
      return;
    } catch (error) {
      reasons.push(`${address}: ${messageOf(error)}`);
    }
  }
  throw new Error(reasons.join('; '));
}
