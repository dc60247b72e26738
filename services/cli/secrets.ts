/** Secrets of a process that are renewed in their files while it runs: its certificate, and the tokens of its cluster. */
import { X509Certificate } from 'node:crypto';
import { statSync } from 'node:fs';
import type { Clock } from '../../shared/base/clock.ts';
import { takenTokens } from '../../shared/base/cluster_tokens.ts';
import { Current } from '../../shared/base/current.ts';
import type { Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { described, untimely } from '../../shared/net/certificates.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { WatchedFiles } from '../../shared/node/role.ts';
import { refuseOpenPorts } from './open_ports.ts';
import { type ReadText, regularText, RenewedFiles } from './renewed_files.ts';
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

/** Dependencies of {@link renewSecrets}. `readText`: of the machine, unless a test reads. */
export interface RenewalContext {
  readonly clock: Clock;
  readonly log: Log;
  readonly signal?: AbortSignal;
  readonly readText?: ReadText;
}

/** Replaces the secrets whenever their files change, for as long as the process runs. A file that is a pipe is read at the start only. */
export function renewSecrets({ tls, clusterTokens }: Secrets, config: ProcessConfig, context: RenewalContext): void {
  const { clock } = context;
  const { tls_cert: cert, tls_key: key, tls_ca: ca, cluster_token_file: file } = config;
  if (tls) {
    const read = ([certText = '', keyText = '', caText = '']: readonly string[], old = tls.value): TlsTexts => {
      const texts = { cert: certText, key: keyText, ca: caText };
      checkTls(texts, config);
      refuseUntimely(cert, texts, old, clock.wallMs());
      return texts;
    };
    const shown = (texts: TlsTexts): object => ({ used: described(new X509Certificate(texts.cert)) });
    watch({ name: 'certificate of this process', files: [cert, key, ca], read, shown }, tls, context);
  }
  if (file !== '') {
    const read = ([text = '']: readonly string[]): string => {
      const tokens = tokensIn(file, text);
      refuseOpenPorts({ ...config, cluster_token: tokens });
      return tokens;
    };
    const shown = (tokens: string): object => ({ used: `${takenTokens(tokens).length} tokens` });
    watch({ name: 'cluster token', files: [file], read, shown }, clusterTokens, context);
  }
}

function watch<T>(
  renewal: WatchedFiles<T>,
  current: Current<T>,
  { clock, log, signal = new AbortController().signal, readText = regularText }: RenewalContext,
): void {
  if (renewal.files.every(isFile)) void new RenewedFiles(renewal, current, log, readText).watch(clock, signal);
  else
    log.info({ files: renewal.files }, `the ${renewal.name} is not in regular files, so it is read at the start only`);
}

function isFile(file: string): boolean {
  return statSync(file, { throwIfNoEntry: false })?.isFile() !== false;
}

/** @throws ConfigError for a certificate that is not valid now, where the one before it is. */
function refuseUntimely(file: string, renewed: TlsTexts, old: TlsTexts, nowMs: number): void {
  const certificate = new X509Certificate(renewed.cert);
  const trouble = untimely(certificate, nowMs);
  if (trouble === undefined || untimely(new X509Certificate(old.cert), nowMs) !== undefined) return;
  throw new ConfigError(`--tls-cert ${file}: ${described(certificate)} ${trouble}`);
}
