/** The file of `--disk-key`: 32 random bytes, as 64 hexadecimal digits or in base64. It is read once, when the store starts. */
import { closeSync, fstatSync, openSync, readSync } from 'node:fs';
import { messageOf } from '../../shared/base/failure.ts';
import type { Log } from '../../shared/base/log.ts';
import { ConfigError } from '../../shared/base/options.ts';
import { KEY_BYTES } from './sealed_box.ts';

/** Command that makes a key. */
const MAKE_KEY = '(umask 077; openssl rand -hex 32 > FILE)';
/** A file of a key is shorter (P1). */
const MAX_FILE_BYTES = 1_024;
/** Permissions of others than the owner. */
const OTHERS = 0o077;

/**
 * Returns the key in a file; undefined for the empty path. Warns where other users may read the file. @throws ConfigError for a file that
 * cannot be read, or has no key.
 */
export function readDiskKey(path: string, log: Log): Uint8Array | undefined {
  if (path === '') return undefined;
  const bytes = Buffer.alloc(MAX_FILE_BYTES + 1);
  let mode: number;
  let numRead = 0;
  try {
    const file = openSync(path, 'r');
    try {
      mode = fstatSync(file).mode;
      for (let got = -1; got !== 0 && numRead < bytes.length; numRead += got)
        got = readSync(file, bytes, numRead, bytes.length - numRead, null);
    } finally {
      closeSync(file);
    }
  } catch (error) {
    throw new ConfigError(`--disk-key ${path}: ${messageOf(error)}; to make a key: ${MAKE_KEY}`);
  }
  const key = keyIn(bytes.toString('latin1', 0, numRead).trim());
  if (!key) {
    const has = numRead === 0 ? 'is empty' : 'has no key of 32 bytes, as 64 hexadecimal digits or in base64';
    throw new ConfigError(`--disk-key ${path} ${has}; to make one: ${MAKE_KEY}`);
  }
  if (process.platform !== 'win32' && (mode & OTHERS) !== 0) {
    log.warn(
      { file: path, mode: (mode & 0o777).toString(8) },
      'other users may read the file of --disk-key, and with it the records on disk: chmod 600',
    );
  }
  return key;
}

function keyIn(text: string): Uint8Array | undefined {
  if (/^[0-9a-fA-F]{64}$/.test(text)) return Buffer.from(text, 'hex');
  if (!/^[A-Za-z0-9+/_-]{43}=?$/.test(text)) return undefined;
  const key = Buffer.from(text, 'base64');
  return key.length === KEY_BYTES ? key : undefined;
}
