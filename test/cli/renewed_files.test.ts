/** Secrets that are renewed in their files, in each way that files change, under a clock of the test. Budget: 5 s. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeEach, test } from 'vitest';
import { systemClock, type Clock } from '../../shared/base/clock.ts';
import { silentLog, type Log } from '../../shared/base/log.ts';
import type { TlsTexts } from '../../shared/net/tls_texts.ts';
import type { ProcessConfig } from '../../shared/node/options.ts';
import { httpsOf, type HttpsConfig } from '../../services/cli/https_files.ts';
import { LOOK_MS, regularText } from '../../services/cli/renewed_files.ts';
import { renewSecrets, secretsOf, type Secrets } from '../../services/cli/secrets.ts';
import { Authority } from '../support/certificates.ts';
import { temporaryFolder } from '../support/cluster.ts';
import { SimulatedClock } from '../sim/simulated_clock.ts';

/** Within this time each change of a file counts, or is reported. */
const RENEWED_MS = 10_000;
const LONG_TOKEN = 'a-token-of-enough-letters';

const authority = new Authority();
const folder = temporaryFolder();
afterAll(() => {
  authority.remove();
  folder.remove();
});
const texts = {
  own: authority.issue('own'),
  next: authority.issue('next'),
  over: authority.issue('over', undefined, -1),
};

/** Where the files of this test are. */
let place = '';
let numPlaces = 0;
let stopped = new AbortController();
let said: { readonly level: 'info' | 'warn'; readonly text: string }[] = [];
let clock: SimulatedClock;
/** How far the date of the test is from today's, in ms. */
let lateMs = 0;
const DAY_MS = 86_400_000;
/** The clock of the test with today's date, by which certificates are valid. */
const dated: Clock = {
  nowMs: () => clock.nowMs(),
  wallMs: () => systemClock.wallMs() + lateMs,
  sleep: (ms, signal) => clock.sleep(ms, signal),
  turn: () => clock.turn(),
};
beforeEach(() => {
  place = join(folder.path, String(numPlaces++));
  mkdirSync(place);
  [stopped, said, clock, lateMs] = [new AbortController(), [], new SimulatedClock(), 0];
});
afterEach(() => {
  stopped.abort();
});

function write({ cert, key, ca }: TlsTexts, to = place): void {
  writeFileSync(join(to, 'tls.crt'), cert);
  writeFileSync(join(to, 'tls.key'), key);
  writeFileSync(join(to, 'ca.crt'), ca);
}

function begin(config: Partial<ProcessConfig> & HttpsConfig, tokens = ''): Secrets {
  const level = (name: 'info' | 'warn') => (fields: object, message: string) =>
    said.push({ level: name, text: `${message} ${JSON.stringify(fields)}` });
  const log = { ...silentLog, info: level('info'), warn: level('warn') } as unknown as Log;
  const files = { tls_cert: '', tls_key: '', tls_ca: '', cluster_token: tokens, cluster_token_file: '' };
  const own = { bind: '', bus: '', ...files, ...config } as ProcessConfig;
  const secrets = secretsOf(own);
  // The clock waits for no file system.
  const readText = (file: string): Promise<string> => Promise.resolve().then(() => readFileSync(file, 'utf8'));
  renewSecrets(secrets, own, { clock: dated, log, signal: stopped.signal, readText });
  return secrets;
}

function beginTls(): { readonly now: () => TlsTexts } {
  const at = (name: string): string => join(place, name);
  const { tls } = begin({ tls_cert: at('tls.crt'), tls_key: at('tls.key'), tls_ca: at('ca.crt') });
  assert(tls);
  return { now: () => tls.value };
}

const levels = (): string => said.map(({ level }) => level).join(' ');
const pass = (ms = RENEWED_MS): Promise<void> => clock.run(clock.nowMs() + ms);

const ways: Record<string, { readonly prepare?: () => void; readonly renew: () => Promise<void> | void }> = {
  'texts are written over': { renew: () => write(texts.next) },
  'other files are put in their place': {
    renew: () => {
      mkdirSync(join(place, 'next'));
      write(texts.next, join(place, 'next'));
      for (const name of ['tls.crt', 'tls.key', 'ca.crt']) renameSync(join(place, 'next', name), join(place, name));
    },
  },
  // Kubernetes mounts a secret so.
  'the symbolic link of their folder changes': {
    prepare: () => {
      for (const name of ['one', 'two']) mkdirSync(join(place, name));
      write(texts.own, join(place, 'one'));
      write(texts.next, join(place, 'two'));
      symlinkSync('one', join(place, '..data'));
      for (const name of ['tls.crt', 'tls.key', 'ca.crt']) {
        rmSync(join(place, name), { force: true });
        symlinkSync(join('..data', name), join(place, name));
      }
    },
    renew: () => {
      symlinkSync('two', join(place, '..new'));
      renameSync(join(place, '..new'), join(place, '..data'));
    },
  },
  'one is written a look after the other': {
    renew: async () => {
      writeFileSync(join(place, 'tls.key'), texts.next.key);
      await pass(LOOK_MS);
      writeFileSync(join(place, 'tls.crt'), texts.next.cert);
    },
  },
  'they are gone for a look': {
    renew: async () => {
      rmSync(join(place, 'tls.crt'));
      await pass(LOOK_MS);
      write(texts.next);
    },
  },
  'a text is cut off for a look': {
    renew: async () => {
      writeFileSync(join(place, 'tls.crt'), texts.next.cert.slice(0, 300));
      await pass(LOOK_MS);
      write(texts.next);
    },
  },
};

test.for(Object.entries(ways))('certificates are renewed when %s', async ([, { prepare, renew }]) => {
  write(texts.own);
  prepare?.();
  const { now } = beginTls();
  await pass();
  assert.deepEqual([now(), levels()], [texts.own, '']);
  await renew();
  await pass();
  assert.deepEqual([now(), levels()], [texts.next, 'info']);
  assert.match(said[0]?.text ?? '', /certificate of this process has been renewed.*CN=next/);
  assert(!said.some(({ text }) => text.includes('PRIVATE KEY')), 'no key is said');
  await pass();
  assert.equal(levels(), 'info');
});

const rsa = authority.issue('rsa', undefined, undefined, ['-newkey', 'rsa:2048', '-nodes']);
const faults: Record<string, { readonly spoil: () => void; readonly reason: RegExp }> = {
  'a key of another certificate': {
    spoil: () => {
      writeFileSync(join(place, 'tls.crt'), texts.next.cert);
    },
    reason: /key values mismatch/,
  },
  'a key of another algorithm': {
    spoil: () => {
      writeFileSync(join(place, 'tls.crt'), rsa.cert);
    },
    reason: /the key does not belong to the certificate/,
  },
  'an authority of which a part is cut off': {
    spoil: () => {
      writeFileSync(join(place, 'ca.crt'), texts.own.ca + texts.next.ca.slice(0, 300));
    },
    reason: /a certificate is cut off/,
  },
  'a second authority that is damaged': {
    spoil: () => {
      writeFileSync(join(place, 'ca.crt'), texts.own.ca + texts.next.ca.replace(/\n.{64}\n/, '\n'));
    },
    reason: /--tls-ca /,
  },
  'no certificate': {
    spoil: () => {
      writeFileSync(join(place, 'tls.crt'), 'nothing');
    },
    reason: /--tls-cert .*PEM/,
  },
  'no authority': {
    spoil: () => {
      writeFileSync(join(place, 'ca.crt'), '');
    },
    reason: /--tls-ca .*PEM/,
  },
  'a file that is gone': {
    spoil: () => {
      rmSync(join(place, 'tls.key'));
    },
    reason: /ENOENT/,
  },
  'a certificate that has expired': { spoil: () => write(texts.over), reason: /CN=over .* has expired/ },
};

test.for(Object.entries(faults))(
  'what cannot be used is said once, and the one of before is kept: %s',
  async ([, fault]) => {
    write(texts.own);
    const { now } = beginTls();
    fault.spoil();
    await pass();
    assert.deepEqual([now(), levels()], [texts.own, 'warn']);
    assert.match(said[0]?.text ?? '', fault.reason);
    assert.match(said[0]?.text ?? '', /the one of before is kept.*CN=own/);
    await pass();
    assert.equal(levels(), 'warn');
    write(texts.next);
    await pass();
    assert.deepEqual([now(), levels()], [texts.next, 'warn info']);
  },
);

test('a certificate that is not valid yet is taken when it is; one that has expired is taken where the one before has, too', async () => {
  write(texts.own);
  const { now } = beginTls();
  lateMs = -3 * DAY_MS;
  await pass();
  const later = authority.issue('later');
  // Two days before either is valid: the one in use is no better.
  write(later);
  await pass();
  assert.deepEqual([now(), levels()], [later, 'info']);
  lateMs = 0;
  write(texts.over);
  await pass();
  assert.deepEqual([now(), levels()], [later, 'info warn']);
  lateMs = 5 * DAY_MS;
  await pass();
  assert.deepEqual([now(), levels()], [texts.over, 'info warn info']);
});

test('what changed between the start and the first look is taken', async () => {
  write(texts.own);
  const file = join(place, 'tokens');
  writeFileSync(file, `another-${LONG_TOKEN}`);
  const secrets = begin({ cluster_token_file: file }, LONG_TOKEN);
  await pass();
  assert.deepEqual([secrets.clusterTokens.value, levels()], [`another-${LONG_TOKEN}`, 'info']);
});

test('a pipe is read at the start only, and a file that is none later is not waited for', async () => {
  const pipe = join(place, 'pipe');
  execFileSync('mkfifo', [pipe]);
  begin({ cluster_token_file: pipe }, LONG_TOKEN);
  await pass();
  assert.match(said[0]?.text ?? '', /read at the start only/);
  await assert.rejects(regularText(pipe), /no regular file/);
  await assert.rejects(regularText(place), /no regular file/);
});

test('the same fault is said again after files were right in between', async () => {
  write(texts.own);
  const { now } = beginTls();
  for (const count of [1, 2]) {
    writeFileSync(join(place, 'tls.crt'), 'nothing');
    await pass();
    assert.equal(said.length, count);
    write(texts.own);
    await pass();
  }
  assert.deepEqual([now(), levels()], [texts.own, 'warn warn']);
});

test('tokens of the cluster are renewed in their file; those that could be guessed are not where others could reach the process', async () => {
  const file = join(place, 'tokens');
  writeFileSync(file, LONG_TOKEN);
  const secrets = begin({ cluster_token_file: file, bind: '0.0.0.0:8000' }, LONG_TOKEN);
  writeFileSync(file, `another-${LONG_TOKEN}\n${LONG_TOKEN}\n`);
  await pass();
  assert.deepEqual([secrets.clusterTokens.value, levels()], [`another-${LONG_TOKEN}\n${LONG_TOKEN}`, 'info']);
  for (const bad of ['', 'short', 'with a blank in it']) {
    writeFileSync(file, bad);
    await pass();
  }
  assert.deepEqual(
    [secrets.clusterTokens.value, levels()],
    [`another-${LONG_TOKEN}\n${LONG_TOKEN}`, 'info warn warn warn'],
  );
  assert(!said.some(({ text }) => text.includes(LONG_TOKEN)), 'no token is said');
});

test('the certificate for clients is renewed in its files; what cannot be used is said, and the one of before is kept', async () => {
  write(texts.own);
  const files = { https_cert: join(place, 'tls.crt'), https_key: join(place, 'tls.key') };
  const { https, tls } = begin(files);
  const pair = ({ cert, key }: TlsTexts): object => ({ cert, key });
  assert.deepEqual([https?.value, tls], [pair(texts.own), undefined]);
  writeFileSync(files.https_key, texts.next.key);
  await pass();
  assert.deepEqual([https?.value, levels()], [pair(texts.own), 'warn']);
  assert.match(said[0]?.text ?? '', /renewed certificate for clients cannot be used.*--https-key/);
  write(texts.over);
  await pass();
  assert.deepEqual([https?.value, levels()], [pair(texts.own), 'warn warn']);
  assert.match(said[1]?.text ?? '', /--https-cert .*CN=over .* has expired/);
  write(texts.next);
  await pass();
  assert.deepEqual([https?.value, levels()], [pair(texts.next), 'warn warn info']);
  assert.match(said[2]?.text ?? '', /certificate for clients has been renewed.*CN=next/);
  assert(!said.some(({ text }) => text.includes('PRIVATE KEY')), 'no key is said');
});

test('a certificate for clients is refused at the start where clients would refuse it', () => {
  write(texts.own);
  const files = { https_cert: join(place, 'tls.crt'), https_key: join(place, 'tls.key') };
  const nowMs = systemClock.wallMs();
  assert.deepEqual(httpsOf(files, nowMs), { cert: texts.own.cert, key: texts.own.key });
  assert.equal(httpsOf({}, nowMs), undefined);
  assert.throws(() => httpsOf(files, nowMs + 5 * DAY_MS), /CN=own .*has expired: clients would refuse it/);
  assert.throws(() => httpsOf(files, nowMs - 5 * DAY_MS), /not valid yet \(or the clock of this machine is wrong\)/);
  const { https_cert, https_key } = files;
  assert.throws(() => httpsOf({ https_cert }, nowMs), /--https-cert needs --https-key: set both/);
  assert.throws(() => httpsOf({ https_key }, nowMs), /--https-key needs --https-cert: set both/);
  const encrypted = join(place, 'encrypted.key');
  execFileSync('openssl', ['pkey', '-in', https_key, '-aes256', '-passout', 'pass:word', '-out', encrypted]);
  assert.throws(() => httpsOf({ https_cert, https_key: encrypted }, nowMs), /without a passphrase/);
});
