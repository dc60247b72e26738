/** Model that a registering engine is for: a known model, one that its instance is asked about, or none. Budget: 2 s. */
import assert from 'node:assert/strict';
import { expect, test } from 'vitest';
import { mergeMetrics } from '../../../services/router/metrics/merge_metrics.ts';
import { Models, type Admitted } from '../../../services/router/cluster/models.ts';
import { Failure } from '../../../shared/base/failure.ts';
import { silentLog } from '../../../shared/base/log.ts';
import type { Network } from '../../../shared/net/network.ts';
import type { Registration } from '../../../shared/protocol/membership.ts';
import { factPages, readFacts, type ModelFacts } from '../../../shared/protocol/model_facts.ts';
import { turn } from '../../support/until.ts';

const facts = (name: string, modelConfig = name, vocabSize = 10): ModelFacts => ({
  name,
  modelConfig,
  vocabSize,
  maxModelLen: 100,
  eosTokenIds: [1],
  defaults: { topP: 0.9 },
  texts: { tokenizer: '{}', config: '{}' },
});

function registration(modelName: string | undefined, modelConfig: string, vocabSize = 10): Registration {
  const engine = { modelConfig, vocabSize, ...(modelName === undefined ? {} : { modelName }) };
  return { member: { name: 'd', address: 'd:1' }, protocolVersion: 1, engine } as unknown as Registration;
}

/** `answers`: what an instance says when it is asked; undefined: it fails. */
function world(answers: () => ModelFacts | undefined): { models: Models; opened: string[]; asked: () => number } {
  const opened: string[] = [];
  let numAsked = 0;
  const network = {
    open: async function* () {
      numAsked++;
      const said = await Promise.resolve(answers());
      if (!said) throw new Failure('instance_lost', 'nobody is there');
      yield* factPages(said);
    },
  } as unknown as Network;
  const open = (one: ModelFacts): Promise<void> => {
    if (one.name === 'broken') return Promise.reject(new Error('its tokenizer cannot be used'));
    opened.push(one.name);
    return Promise.resolve();
  };
  const models = new Models({ network, log: silentLog, signal: new AbortController().signal, open });
  return { models, opened, asked: () => numAsked };
}

const refusal = (admitted: Admitted): string => ('refused' in admitted ? admitted.refused : assert.fail('admitted'));

test('a model that is known, by its name, or by that of its files', async () => {
  const { models } = world(() => undefined);
  models.add(facts('a'));
  models.add({ ...facts('b'), filesName: 'folder' });
  expect(models.admit(registration('a', 'a'))).toEqual({ model: 'a' });
  expect(models.admit(registration('folder', 'b'))).toEqual({ model: 'b' });
  // The shape is the same, but the weights may differ.
  assert('wait' in models.admit(registration('another', 'b')));
  await turn();
  expect(models.admit(registration(undefined, 'a'))).toEqual({ model: 'a' });
  expect(refusal(models.admit(registration('a', 'b')))).toContain('config.json says something else');
  expect(refusal(models.admit(registration('a', 'a', 11)))).toContain('vocabulary 11');
  expect(refusal(models.admit(registration(undefined, 'x')))).toContain('another model');
});

test('two of one shape are told apart by their names', async () => {
  const { models, opened } = world(() => facts('chat', 'llama'));
  models.add(facts('base', 'llama'));
  models.add(facts('code', 'llama'));
  assert('wait' in models.admit(registration('chat', 'llama')));
  await turn();
  expect(opened).toEqual(['chat']);
  expect(models.admit(registration('chat', 'llama'))).toEqual({ model: 'chat' });
});

test('an instance is asked once, however often it registers meanwhile', async () => {
  const { models, opened, asked } = world(() => facts('new'));
  models.add(facts('a'));
  for (let i = 0; i < 5; i++) assert('wait' in models.admit(registration('new', 'new')));
  await turn();
  expect(models.admit(registration('new', 'new'))).toEqual({ model: 'new' });
  expect([opened, asked()]).toEqual([['new'], 1]);
});

test('what cannot be served is refused in words, and may be tried again', async () => {
  const { models } = world(() => undefined);
  models.add(facts('a'));
  for (let round = 0; round < 2; round++) {
    assert('wait' in models.admit(registration('new', 'new')));
    await turn();
    expect(refusal(models.admit(registration('new', 'new')))).toContain('nobody is there');
  }
  const liar = world(() => facts('other'));
  liar.models.admit(registration('new', 'new'));
  await turn();
  expect(refusal(liar.models.admit(registration('new', 'new')))).toContain('it reports model other');
  const broken = world(() => facts('broken'));
  broken.models.admit(registration('broken', 'broken'));
  await turn();
  expect(refusal(broken.models.admit(registration('broken', 'x')))).toContain('its tokenizer cannot be used');
});

test('no more than a router can hold', async () => {
  const { models } = world(() => facts('new'));
  for (let i = 0; i < 64; i++) models.add(facts(`m${i}`));
  expect(refusal(models.admit(registration('new', 'new')))).toContain('at most 64 models');
  await turn();
});

test('facts travel in pages; what is none is refused', async () => {
  const large = { ...facts('a'), texts: { tokenizer: 'x'.repeat(1_000_000), config: '{}' } };
  async function* pages(list: Iterable<{ data: Buffer }>): AsyncGenerator<{ data: Buffer }> {
    for (const page of list) yield await Promise.resolve(page);
  }
  const sent = [...factPages(large)];
  expect(sent.length).toBeGreaterThan(3);
  expect(await readFacts(pages(sent))).toEqual(large);
  await assert.rejects(readFacts(pages(sent.slice(1))), /are not JSON/);
  await assert.rejects(readFacts(pages([{ data: Buffer.from('{"name":""}') }])), /have wrong fields/);
});

test('texts of several registries become one, each metric in one place', () => {
  const text = (model: string): string =>
    `# HELP a help\n# TYPE a counter\na{m="${model}"} 1\n\n# HELP b help\n# TYPE b gauge\nb{m="${model}"} 2\n`;
  expect(mergeMetrics([text('x'), text('y')])).toBe(
    '# HELP a help\n# TYPE a counter\na{m="x"} 1\na{m="y"} 1\n\n# HELP b help\n# TYPE b gauge\nb{m="x"} 2\nb{m="y"} 2\n',
  );
});
