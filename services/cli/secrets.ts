/** Secrets of a process that are renewed in their files while it runs: its certificate, and the tokens of its cluster. */
import { X509Certificate } from 'node:crypto';
import { statSync } from 'node:fs';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { takenTokens } from '../../shared/base/cluster_tokens.ts';
import { Current } from '../../shared/base/current.ts';
import type { Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { described, untimely } from '../../shared/net/certificates.ts';
import type { ServerTexts, TlsTexts } from '../../shared/net/tls_texts.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import type { WatchedFiles } from '../../shared/node/role.ts';
import { checkHttps, httpsOf, type HttpsConfig } from './https_files.ts';
import { refuseOpenPorts } from './open_ports.ts';
import { type ReadText, regularText, RenewedFiles } from './renewed_files.ts';
import { checkTls, tlsOf } from './tls_files.ts';
import { tokensIn } from './token_file.ts';

/** Secrets with which a process meets the others of its cluster. */
export interface Secrets {
  /** Undefined without --tls-cert. */
  readonly tls: Current<TlsTexts> | undefined;
  /** Certificate for a router's clients; undefined without --https-cert. */
  readonly https: Current<ServerTexts> | undefined;
  readonly clusterTokens: Current<string>;
}

/** Returns the secrets as they are now, `nowMs` after 1970. @throws ConfigError for files that cannot be used. */
export function secretsOf(config: ProcessConfig & HttpsConfig, nowMs = systemClock.wallMs()): Secrets {
  const [tls, https] = [tlsOf(config), httpsOf(config, nowMs)];
  return {
    tls: tls && new Current(tls),
    https: https && new Current(https),
    clusterTokens: new Current(config.cluster_token),
  };
}

/** Dependencies of {@link renewSecrets}. `readText`: of the machine, unless a test reads. */
export interface RenewalContext {
  readonly clock: Clock;
  readonly log: Log;
  readonly signal?: AbortSignal;
  readonly readText?: ReadText;
}

/** Replaces the secrets whenever their files change, for as long as the process runs. A file that is a pipe is read at the start only. */
export function renewSecrets(
  { tls, https, clusterTokens }: Secrets,
  config: ProcessConfig & HttpsConfig,
  context: RenewalContext,
): void {
  const { clock } = context;
  const { tls_cert: cert, tls_key: key, tls_ca: ca, cluster_token_file: file } = config;
  if (tls) {
    const read = ([certText = '', keyText = '', caText = '']: readonly string[], old = tls.value): TlsTexts => {
      const texts = { cert: certText, key: keyText, ca: caText };
      checkTls(texts, config);
      refuseUntimely(`--tls-cert ${cert}`, texts, old, clock.wallMs());
      return texts;
    };
    const files = [cert, key, ca];
    watch({ name: 'certificate of this process', files, dependsOnTime: true, read, shown: shownTexts }, tls, context);
  }
  if (https) renewHttps(https, config, context);
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

function renewHttps(https: Current<ServerTexts>, config: HttpsConfig, context: RenewalContext): void {
  const { https_cert: cert = '', https_key: key = '' } = config;
  const read = ([certText = '', keyText = '']: readonly string[], old = https.value): ServerTexts => {
    const texts = { cert: certText, key: keyText };
    checkHttps(texts, config);
    refuseUntimely(`--https-cert ${cert}`, texts, old, context.clock.wallMs());
    return texts;
  };
  const files = [cert, key];
  watch({ name: 'certificate for clients', files, dependsOnTime: true, read, shown: shownTexts }, https, context);
}

function shownTexts({ cert }: ServerTexts): object {
  return { used: described(new X509Certificate(cert)) };
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
function refuseUntimely(option: string, renewed: ServerTexts, old: ServerTexts, nowMs: number): void {
  const certificate = new X509Certificate(renewed.cert);
  const trouble = untimely(certificate, nowMs);
  if (trouble === undefined || untimely(new X509Certificate(old.cert), nowMs) !== undefined) return;
  throw new ConfigError(`${option}: ${described(certificate)} ${trouble}`);
}
