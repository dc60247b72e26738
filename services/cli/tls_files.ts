/** Files of TLS that options name, as the texts that processes use. */
import { createPrivateKey, X509Certificate } from 'node:crypto';
import { createSecureContext } from 'node:tls';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';
import type { ServerTexts, TlsTexts } from '../../shared/net/tls_texts.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { textOf } from './option_files.ts';

type TlsConfig = Pick<ProcessConfig, 'tls_cert' | 'tls_key' | 'tls_ca'>;

/**
 * Reads the files of --tls-cert, --tls-key and --tls-ca; returns undefined when none of the three is set. @throws ConfigError when
 * only some of them are set, or a file cannot be read or holds no certificate or key.
 */
export function tlsOf(config: TlsConfig): TlsTexts | undefined {
  const { tls_cert: cert, tls_key: key, tls_ca: ca } = config;
  if (cert === '' && key === '' && ca === '') return undefined;
  if (cert === '' || key === '' || ca === '')
    throw new ConfigError(
      'set all of --tls-cert, --tls-key and --tls-ca, or none: both sides of a connection are verified',
    );
  const tls = {
    cert: textOf('--tls-cert', cert),
    key: textOf('--tls-key', key),
    ca: textOf('--tls-ca', ca),
  };
  checkTls(tls, config);
  return tls;
}

/** @throws ConfigError for texts of these files that hold no certificate or key, or a key of another certificate. */
export function checkTls(tls: TlsTexts, { tls_cert: cert, tls_key: key, tls_ca: ca }: TlsConfig): void {
  try {
    // createSecureContext accepts a CA file without certificates and would then trust all public authorities.
    firstCertificate(tls.ca);
    certificateOf(tls);
  } catch (error) {
    throw new ConfigError(`--tls-cert ${cert}, --tls-key ${key}, --tls-ca ${ca}: ${messageOf(error)}`);
  }
}

/** Returns the certificate that these texts show. @throws Error where there is none, the key is that of another one, or OpenSSL refuses them */
export function certificateOf(tls: ServerTexts): X509Certificate {
  const certificate = firstCertificate(tls.cert);
  createSecureContext(tls);
  // createSecureContext compares a key with certificates of its own algorithm only.
  if (!certificate.checkPrivateKey(createPrivateKey(tls.key)))
    throw new Error('the key does not belong to the certificate');
  return certificate;
}

/** Returns the first certificate in a PEM text. @throws Error where there is none, or any is damaged or cut off */
function firstCertificate(text: string): X509Certificate {
  const blocks = text.match(/-----BEGIN [^-]+-----[^]*?-----END [^-]+-----/g) ?? [];
  const [first] = blocks
    .filter((block) => /^-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----/.test(block))
    .map((block) => new X509Certificate(block));
  if (first === undefined) throw new Error('there is no certificate (PEM) in a file');
  if (text.split('-----BEGIN ').length - 1 !== blocks.length) throw new Error('a certificate is cut off');
  return first;
}
