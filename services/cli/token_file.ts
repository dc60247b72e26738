/** The file of --cluster-token-file: one token a line. The first one is sent, all of them are taken, so that a token can be replaced. */
import { ConfigError } from '../../shared/base/options.ts';
import { MAX_TOKENS, TOKEN_SEPARATOR } from '../../shared/base/cluster_tokens.ts';
import { textOf } from './option_files.ts';

/** Characters of a token that keep a cluster beyond one machine: fewer can be guessed. */
export const MIN_TOKEN = 16;
/** Command that makes a token. */
export const MAKE_TOKEN = 'openssl rand -hex 24';

interface TokenConfig {
  readonly cluster_token: string;
  readonly cluster_token_file: string;
}

/**
 * Returns a command line whose configuration has the tokens of its file. @throws ConfigError when there is a token besides the file, or for
 * a file that cannot be used.
 */
export function withTokenFile<T extends { readonly config: object; readonly isSet: ReadonlySet<string> }>(line: T): T {
  const { cluster_token: token, cluster_token_file: file = '' } = line.config as Partial<TokenConfig>;
  if (file === '') return line;
  if (token !== '')
    throw new ConfigError(
      'set either --cluster-token-file or PENSTOCK_CLUSTER_TOKEN (--cluster-token), not both: only one of them can be right',
    );
  return {
    ...line,
    config: { ...line.config, cluster_token: tokensIn(file, textOf('--cluster-token-file', file)) },
    isSet: new Set([...line.isSet, 'cluster_token']),
  };
}

/**
 * Returns the tokens in the text of a token file, as a configuration has them. @throws ConfigError when there are none or more than MAX_TOKENS, or
 * one cannot be sent.
 */
export function tokensIn(file: string, text: string): string {
  const tokens = text
    .split('\n')
    .map((line) => line.trim())
    .filter((line) => line !== '');
  const wrong = tokens.findIndex((one) => !/^[\x21-\x7e]+$/.test(one));
  if (tokens.length === 0) throw new ConfigError(`--cluster-token-file ${file} has no token: ${MAKE_TOKEN} > ${file}`);
  if (tokens.length > MAX_TOKENS)
    throw new ConfigError(
      `--cluster-token-file ${file} has ${tokens.length} tokens; at most ${MAX_TOKENS} hold at a time`,
    );
  if (wrong >= 0)
    throw new ConfigError(`--cluster-token-file ${file}: token ${wrong + 1} is not printable ASCII without spaces`);
  return tokens.join(TOKEN_SEPARATOR);
}
