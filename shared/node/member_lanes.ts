/** Both sides of lanes, as an instance and a store have them. */
import { LaneHost } from '../net/lane_host.ts';
import { Lanes } from '../net/lanes.ts';
import type { Mover } from '../net/mover/mover.ts';
import type { MemberConfig } from './options.ts';
import type { Host } from './role.ts';

const BIND_HOST = '127.0.0.1';

export interface MemberLanes {
  /** To other holders. */
  readonly lanes: Lanes;
  /** For those who fetch from here. */
  readonly host: LaneHost;
}

/** Undefined: this process is told to use calls alone. */
export function lanesOf(
  { transport, bind, bulk_port: port }: Pick<MemberConfig, 'transport' | 'bind' | 'bulk_port'>,
  mover: Mover,
  { network, clock, log, newId }: Pick<Host, 'network' | 'clock' | 'log' | 'newId'>,
  signal: AbortSignal,
): MemberLanes | undefined {
  if (transport === 'grpc') return undefined;
  const isShared = transport === 'auto';
  const host = bind === '' ? BIND_HOST : bind.slice(0, bind.lastIndexOf(':')).replace(/^\[|\]$/g, '');
  return {
    lanes: new Lanes({ network, mover, isShared, clock, log, signal }),
    host: new LaneHost({ mover, host, port, isShared, newId, clock, log, signal }),
  };
}
