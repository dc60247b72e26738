/** The token that is sent to the hub, from where huggingface_hub has it. */
import { existsSync, readFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the folder of Hugging Face's libraries. */
export function hubHome(env: Environment): string {
  return env['HF_HOME'] || join(env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'huggingface');
}

/**
 * Returns the token that huggingface_hub would send: of HF_TOKEN, of HUGGING_FACE_HUB_TOKEN, which it had before, or the one that `hf auth login` has
 * stored; empty when there is none, or HF_HUB_DISABLE_IMPLICIT_TOKEN turns it off.
 */
export function tokenOf(env: Environment): string {
  if (/^(1|on|yes|true)$/i.test(env['HF_HUB_DISABLE_IMPLICIT_TOKEN'] ?? '')) return '';
  const path = env['HF_TOKEN_PATH'] || join(hubHome(env), 'token');
  const stored = existsSync(path) ? readFileSync(path, 'utf8') : '';
  // Secrets often end with a line end.
  const clean = (text = ''): string => text.replace(/[\r\n]/g, '').trim();
  return [env['HF_TOKEN'], env['HUGGING_FACE_HUB_TOKEN'], stored].map(clean).find((token) => token !== '') ?? '';
}
