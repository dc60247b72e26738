/** An authority of its own, and certificates from it, made by openssl for as long as a test lasts. */
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'node:tls';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes'];

export class Authority {
  readonly folder = mkdtempSync(join(tmpdir(), 'penstock-certificates-'));

  constructor() {
    this.#openssl('req', '-x509', ...KEY, '-keyout', 'ca.key', '-out', 'ca.pem', '-days', '2', '-subj', '/CN=ca');
  }

  #openssl(...args: string[]): void {
    execFileSync('openssl', args, { cwd: this.folder, stdio: 'ignore' });
  }

  file(name: string): string {
    return join(this.folder, name);
  }

  /** Writes NAME.pem and NAME.key. `names`: what the certificate is for, as openssl writes it; `days`: how long it is valid, -1 for one that has expired; `key`: how openssl makes the key. */
  issue(name: string, names = 'IP:127.0.0.1', days = 2, key: readonly string[] = KEY): TlsTexts {
    writeFileSync(this.file('ext'), `subjectAltName=${names}`);
    this.#openssl('req', ...key, '-keyout', `${name}.key`, '-out', `${name}.csr`, '-subj', `/CN=${name}`);
    const signed = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-days', String(days), '-extfile', 'ext'];
    this.#openssl('x509', '-req', '-in', `${name}.csr`, ...signed, '-out', `${name}.pem`);
    const held = (file: string): string => readFileSync(this.file(file), 'utf8');
    return { ca: held('ca.pem'), cert: held(`${name}.pem`), key: held(`${name}.key`) };
  }

  remove(): void {
    rmSync(this.folder, { recursive: true });
  }
}

/**
 * Returns the subject of the certificate that a TLS server shows to a client; undefined where it does not let the client in. With TLS 1.2 the server says
 * so before the client takes the connection for made.
 */
export function shownTo(tls: TlsTexts, host: string, port: number): Promise<string | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host, port, ...tls, maxVersion: 'TLSv1.2', ALPNProtocols: ['h2'] });
    socket.once('secureConnect', () => {
      resolve(socket.getPeerX509Certificate()?.subject);
      socket.destroy();
    });
    socket.once('error', () => {
      resolve(undefined);
    });
  });
}
