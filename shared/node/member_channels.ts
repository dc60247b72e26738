/** Builds both ends of data channels for an instance or a store: the host that serves them, and the channels to other holders. */
import { ChannelHost } from '../net/channel_host.ts';
import { DataChannels } from '../net/data_channels.ts';
import type { TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { MemberConfig } from './options.ts';
import type { Host } from './role.ts';

const BIND_HOST = '127.0.0.1';

/** Data channels of a member, both ends. */
export interface MemberChannels {
  /** Data channels to other holders, over which this member fetches. */
  readonly channels: DataChannels;
  /** Host of the data channels over which others fetch from this member. */
  readonly host: ChannelHost;
}

/** Returns both ends of data channels; undefined when `transport` is 'grpc' and blocks go over calls alone. */
export function channelsOf(
  { transport, bind, bulk_port: port }: Pick<MemberConfig, 'transport' | 'bind' | 'bulk_port'>,
  transferThread: TransferThread,
  { network, clock, log, newId }: Pick<Host, 'network' | 'clock' | 'log' | 'newId'>,
  signal: AbortSignal,
): MemberChannels | undefined {
  if (transport === 'grpc') return undefined;
  const isShared = transport === 'auto';
  const host = bind === '' ? BIND_HOST : bind.slice(0, bind.lastIndexOf(':')).replace(/^\[|\]$/g, '');
  return {
    channels: new DataChannels({ network, transferThread, isShared, clock, log, signal }),
    host: new ChannelHost({ transferThread, host, port, isShared, newId, clock, log, signal }),
  };
}
