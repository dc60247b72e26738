/** Options and credentials of gRPC channels: how large, how patient, and whether encrypted. */
import { isIP } from 'node:net';
import { checkServerIdentity } from 'node:tls';
import {
  ServerCredentials,
  credentials,
  experimental,
  type ChannelCredentials,
  type ChannelOptions,
} from '@grpc/grpc-js';
import type { Current } from '../../base/current.ts';
import type { TlsTexts } from '../tls_texts.ts';

const MAX_MESSAGE_BYTES = 16 << 20;

/** Options of every channel, on both sides. */
export const channelOptions: ChannelOptions = {
  'grpc.max_receive_message_length': MAX_MESSAGE_BYTES,
  'grpc.max_send_message_length': MAX_MESSAGE_BYTES,
  // The default of 64 KiB stops a bulk stream for a round trip per record.
  'grpc-node.flow_control_window': 8 << 20,
  'grpc.initial_reconnect_backoff_ms': 100,
  'grpc.max_reconnect_backoff_ms': 500,
  // A dead peer without a reset is noticed by its silence on the bus; this is the transport's own safety net.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
  // Members of a cluster reach each other directly: `http_proxy` and its relatives are for what is outside.
  'grpc.enable_http_proxy': 0,
};

/** Server name that is sent to a peer known by its IP address: TLS names hosts only (RFC 6066, section 3), and Node 26 refuses any other. */
const NAME_FOR_IP = 'localhost';

/** Certificates as the library's clients and servers take them: each connection uses those of its time. */
export class Certificates implements experimental.CertificateProvider {
  readonly #tls: Current<TlsTexts>;
  /** Functions that end the updates of each listener. One entry for each client and server that is open. */
  readonly #ends = new Map<unknown, () => void>();

  constructor(tls: Current<TlsTexts>) {
    this.#tls = tls;
  }

  addCaCertificateListener(listener: experimental.CaCertificateUpdateListener): void {
    this.#add(listener, ({ ca }) => {
      listener({ caCertificate: Buffer.from(ca) });
    });
  }

  removeCaCertificateListener(listener: experimental.CaCertificateUpdateListener): void {
    this.#remove(listener);
  }

  addIdentityCertificateListener(listener: experimental.IdentityCertificateUpdateListener): void {
    this.#add(listener, ({ cert, key }) => {
      listener({ certificate: Buffer.from(cert), privateKey: Buffer.from(key) });
    });
  }

  removeIdentityCertificateListener(listener: experimental.IdentityCertificateUpdateListener): void {
    this.#remove(listener);
  }

  #add(listener: unknown, take: (tls: TlsTexts) => void): void {
    this.#remove(listener);
    const end = this.#tls.onReplace(take);
    this.#ends.set(listener, end);
    // A server of the library hears only what comes after the call that adds its listener.
    queueMicrotask(() => {
      if (this.#ends.get(listener) === end) take(this.#tls.value);
    });
  }

  #remove(listener: unknown): void {
    this.#ends.get(listener)?.();
    this.#ends.delete(listener);
  }
}

/** Returns the credentials and channel options of a client. A peer's certificate must name the host of `address`. */
export function clientOptions(address: string, tls: Certificates | undefined): [ChannelCredentials, ChannelOptions] {
  if (!tls) return [credentials.createInsecure(), channelOptions];
  const host = address.slice(0, address.lastIndexOf(':')).replace(/^\[|\]$/g, '');
  const own = experimental.createCertificateProviderChannelCredentials(tls, tls, {
    checkServerIdentity: (_serverName, certificate) => checkServerIdentity(host, certificate),
  });
  return [own, isIP(host) === 0 ? channelOptions : { ...channelOptions, 'grpc.ssl_target_name_override': NAME_FOR_IP }];
}

/** Returns the credentials of a server, which with `tls` asks its clients for a certificate. */
export function serverCredentials(tls: Certificates | undefined): ServerCredentials {
  return tls
    ? experimental.createCertificateProviderServerCredentials(tls, tls, true)
    : ServerCredentials.createInsecure();
}
