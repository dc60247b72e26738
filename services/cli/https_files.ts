/** Files of --https-cert and --https-key, as the texts with which a router serves HTTPS. */
import type { X509Certificate } from 'node:crypto';
import { messageOf } from '../../shared/base/failure.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { described, untimely } from '../../shared/net/certificates.ts';
import type { ServerTexts } from '../../shared/net/tls_texts.ts';
import { textOf } from './option_files.ts';
import { certificateOf } from './tls_files.ts';

/** Options of a process, of which a router's have these two. */
export interface HttpsConfig {
  readonly https_cert?: string;
  readonly https_key?: string;
}

/**
 * Reads both files; returns undefined when neither is set. `nowMs`: milliseconds since 1970. @throws ConfigError when only one is set, a file cannot be
 * read, the key is not that of the certificate, or the certificate is not valid now
 */
export function httpsOf(
  { https_cert: cert = '', https_key: key = '' }: HttpsConfig,
  nowMs: number,
): ServerTexts | undefined {
  if (cert === '' && key === '') return undefined;
  if (cert === '' || key === '')
    throw new ConfigError(
      `--https-${cert === '' ? 'key' : 'cert'} needs --https-${cert === '' ? 'cert' : 'key'}: set both, or none for HTTP without TLS`,
    );
  const texts = { cert: textOf('--https-cert', cert), key: textOf('--https-key', key) };
  const certificate = checkHttps(texts, { https_cert: cert, https_key: key });
  const trouble = untimely(certificate, nowMs);
  if (trouble !== undefined)
    throw new ConfigError(
      `--https-cert ${cert}: ${described(certificate)} ${trouble}: clients would refuse it; put a certificate that is valid now into the file`,
    );
  return texts;
}

/** Returns the certificate of these texts. @throws ConfigError where there is none, or the key is no key or that of another one */
export function checkHttps(
  texts: ServerTexts,
  { https_cert: cert = '', https_key: key = '' }: HttpsConfig,
): X509Certificate {
  try {
    return certificateOf(texts);
  } catch (error) {
    throw new ConfigError(
      `--https-cert ${cert}, --https-key ${key}: ${messageOf(error)}; both have to be PEM, the key that of the first certificate and without a passphrase`,
    );
  }
}
