/** Secrets of a process that are renewed in their files while it runs: its certificate, and the tokens of its cluster. */
import { X509Certificate } from 'node:crypto';
import type { Clock } from '../../shared/base/clock.ts';
import { takenTokens } from '../../shared/base/cluster_tokens.ts';
import { Current } from '../../shared/base/current.ts';
import type { Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { described, untimely } from '../../shared/net/certificates.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { refuseOpenPorts } from './open_ports.ts';
import { RenewedFiles } from './renewed_files.ts';
import { checkTls, tlsOf } from './tls_files.ts';
import { tokensIn } from './token_file.ts';

/** Secrets with which a process meets the others of its cluster. */
export interface Secrets {
  /** Undefined without --tls-cert. */
  readonly tls: Current<TlsTexts> | undefined;
  readonly clusterTokens: Current<string>;
}

/** Returns the secrets as they are now. @throws ConfigError for files that cannot be used. */
export function secretsOf(config: ProcessConfig): Secrets {
  const tls = tlsOf(config);
  return { tls: tls && new Current(tls), clusterTokens: new Current(config.cluster_token) };
}

/** Replaces the secrets whenever their files change, for as long as the process runs. */
export function renewSecrets(
  { tls, clusterTokens }: Secrets,
  config: ProcessConfig,
  { clock, log, signal = new AbortController().signal }: { clock: Clock; log: Log; signal?: AbortSignal },
): void {
  const { tls_cert: cert, tls_key: key, tls_ca: ca, cluster_token_file: file } = config;
  if (tls) {
    const read = ([certText = '', keyText = '', caText = '']: readonly string[], old: TlsTexts): TlsTexts => {
      const texts = { cert: certText, key: keyText, ca: caText };
      checkTls(texts, config);
      refuseUntimely(cert, texts, old, clock.wallMs());
      return texts;
    };
    const shown = (texts: TlsTexts): object => ({ used: described(new X509Certificate(texts.cert)) });
    const renewal = { name: 'certificate of this process', files: [cert, key, ca], read, shown };
    new RenewedFiles(renewal, tls, log).watch(clock, signal);
  }
  if (file !== '') {
    const read = ([text = '']: readonly string[]): string => {
      const tokens = tokensIn(file, text);
      refuseOpenPorts({ ...config, cluster_token: tokens });
      return tokens;
    };
    const shown = (tokens: string): object => ({ used: `${takenTokens(tokens).length} tokens` });
    new RenewedFiles({ name: 'cluster token', files: [file], read, shown }, clusterTokens, log).watch(clock, signal);
  }
}

/** @throws ConfigError for a certificate that is not valid now, where the one before it is. */
function refuseUntimely(file: string, renewed: TlsTexts, old: TlsTexts, nowMs: number): void {
  const trouble = untimely(new X509Certificate(renewed.cert), nowMs);
  if (trouble === undefined || untimely(new X509Certificate(old.cert), nowMs) !== undefined) return;
  throw new ConfigError(`--tls-cert ${file}: ${described(new X509Certificate(renewed.cert))} ${trouble}`);
}
