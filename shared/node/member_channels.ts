/** Both sides of data channels, as an instance and a store have them. */
import { ChannelHost } from '../net/channel_host.ts';
import { DataChannels } from '../net/data_channels.ts';
import type { TransferThread } from '../net/transfer_thread/transfer_thread.ts';
import type { MemberConfig } from './options.ts';
import type { Host } from './role.ts';

const BIND_HOST = '127.0.0.1';

export interface MemberChannels {
  /** To other holders. */
  readonly channels: DataChannels;
  /** For those who fetch from here. */
  readonly host: ChannelHost;
}

/** Undefined: this process is told to use calls alone. */
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
