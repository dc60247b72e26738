/**
 * PEM texts with which a process identifies itself to its cluster and verifies its peers. With them, all traffic between processes is
 * encrypted and both ends of a connection are verified. All certificates come from one authority and name the hosts at which their
 * processes are reached.
 */
export interface TlsTexts {
  readonly cert: string;
  readonly key: string;
  readonly ca: string;
}

/** PEM texts of a server whose clients verify it, and that verifies none of them. */
export type ServerTexts = Pick<TlsTexts, 'cert' | 'key'>;
