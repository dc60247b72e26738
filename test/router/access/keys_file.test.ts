/** The file of --keys: what it may say, and for each fault the line and what to do. Budget: 2 s. */
import assert from 'node:assert/strict';
import { describe, test } from 'vitest';
import { ConfigError } from '../../../shared/base/options.ts';
import { readKeysFile } from '../../../services/router/access/keys_file.ts';

const digest = (letter: string): string => letter.repeat(64);
const alice = `- name: alice\n  sha256: ${digest('a')}\n  tenant: research\n`;
const bob = `- name: bob\n  sha256: ${digest('b')}\n  tenant: sales\n`;
const read = (text: string): ReturnType<typeof readKeysFile> => readKeysFile('keys.yaml', text, ['harbour', 'tools']);

test('an entry has a name, a digest and a tenant, and what else it states', () => {
  assert.deepEqual(read(alice), [{ name: 'alice', sha256: digest('a'), tenant: 'research', admin: false }]);
  const [full] = read(
    `${alice}  admin: true\n  models: [tools]\n  sharing: all\n  targets: {ttft_ms: 500}\n  limits: {requests_in_flight: 8, samples: 4}\n  weight: 0.5\n  max_priority: 3\n`,
  );
  assert.deepEqual(full, {
    name: 'alice',
    sha256: digest('a'),
    tenant: 'research',
    admin: true,
    models: ['tools'],
    sharing: 'all',
    targets: { ttft_ms: 500 },
    limits: { requests_in_flight: 8, samples: 4 },
    weight: 0.5,
    max_priority: 3,
  });
  const [upper] = read(alice.replace(digest('a'), digest('A')));
  assert.equal(upper?.sha256, digest('a'));
});

describe('what is refused, with its line and a cure', () => {
  const cases: Readonly<Record<string, readonly [text: string, message: RegExp]>> = {
    'no YAML': ['- name: [', /^keys\.yaml:1: no YAML: /],
    'an empty file': ['', /^keys\.yaml:1: expected a list with an entry for each key; `penstock key NAME --tenant T`/],
    'no list': ['name: alice\n', /^keys\.yaml:1: expected a list/],
    'an empty list': ['[]', /^keys\.yaml:1: expected a list/],
    'an entry that is a text': [`${alice}- bob\n`, /^keys\.yaml:4: an entry has keys and values, such as name: alice/],
    'an unknown field': [
      `${alice}  admn: true\n`,
      /^keys\.yaml:4: admn: unknown; allowed are name, sha256, tenant, admin/,
    ],
    'an unknown limit': [
      `${alice}  limits: {rpm: 3}\n`,
      /^keys\.yaml:4: limits\.rpm: unknown; allowed are .*requests_in_flight/,
    ],
    'an unknown target': [
      `${alice}  targets:\n    ttft: 3\n`,
      /^keys\.yaml:5: targets\.ttft: unknown; allowed are ttft_ms, tbt_ms/,
    ],
    'a digest that is none': [
      alice.replace(digest('a'), 'abc'),
      /^keys\.yaml:2: sha256: the SHA-256 of a key, 64 hexadecimal digits/,
    ],
    'a digest without quotes that is a number': [alice.replace(digest('a'), '1'.repeat(64)), /^keys\.yaml:2: sha256: /],
    'a key in place of its digest': [alice.replace(digest('a'), 'penstock_x'), /^keys\.yaml:2: sha256: /],
    'no tenant': [`${bob}- name: alice\n  sha256: ${digest('a')}\n`, /^keys\.yaml:4: tenant: it is missing/],
    'two equal names': [`${alice}${bob.replace('bob', 'alice')}`, /^keys\.yaml:4: the name of entry 1 again/],
    'two equal digests': [
      `${alice}\n${bob.replace(digest('b'), digest('a'))}`,
      /^keys\.yaml:6: the digest of entry 1 again/,
    ],
    'a negative limit': [
      `${alice}  limits:\n    samples: -1\n`,
      /^keys\.yaml:5: limits\.samples: at least 1: leave it out for no limit/,
    ],
    'a limit of nothing': [`${alice}  limits: {requests_in_flight: 0}\n`, /^keys\.yaml:4: .*at least 1/],
    'a weight of nothing': [`${alice}  weight: 0\n`, /^keys\.yaml:4: weight: at least 0\.001/],
    'a model that is not served': [
      `${alice}  models:\n    - harbour\n    - gpt\n`,
      /^keys\.yaml:6: the model gpt is not served: --model of the router has harbour, tools; add it there/,
    ],
    'a name with a space': [alice.replace('alice', 'a b'), /^keys\.yaml:1: name: letters, digits/],
    'a tenant with two limits': [
      `${alice}  limits: {samples: 2}\n${bob.replace('sales', 'research')}  limits: {samples: 3}\n`,
      /^keys\.yaml:8: limits: \{"samples":3\}, where another entry of the tenant research has \{"samples":2\}/,
    ],
    'a tenant that shares and does not': [
      `${alice}  sharing: all\n${bob.replace('sales', 'research')}  sharing: own\n`,
      /^keys\.yaml:8: sharing: /,
    ],
  };
  test.each(Object.entries(cases))('%s', (_name, [text, message]) => {
    assert.throws(
      () => read(text),
      (error: unknown) => {
        assert(error instanceof ConfigError);
        assert.match(error.message, message);
        return true;
      },
    );
  });

  test('more keys than 5,000', () => {
    const many = Array.from(
      { length: 5_001 },
      (_, i) => `- {name: n${i}, sha256: "${i.toString(16).padStart(64, '0')}", tenant: t}`,
    );
    assert.throws(() => read(many.join('\n')), /5001 keys are more than 5000/);
    assert.equal(read(many.slice(1).join('\n')).length, 5_000);
  });
});
