/**
 * What a process shows the others of its cluster, and checks them with, in PEM. With it everything between processes is encrypted and both
 * sides of a connection are checked: certificates are of one authority, and name the hosts that their processes are reached at.
 */
export interface TlsTexts {
  readonly cert: string;
  readonly key: string;
  readonly ca: string;
}
