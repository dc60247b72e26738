/**
 * Vocabularies and chat templates that people have: pairs that the Rust reference made, random texts against the library, and what Hugging Face
 * transformers makes of lists of messages (`test/golden/templates/record_real.py`). Budget: 30 s.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { FastEncoder } from '../../shared/text/encoder/fast_encoder.ts';
import { openLibrary } from '../../shared/text/encoder/library.ts';
import type { LibraryTokenizer } from '../../shared/text/encoder/library_tokenizer.ts';
import { ChatTemplate } from '../../shared/text/template/chat_template.ts';
import { Random } from '../../shared/base/random.ts';
import { readTextFiles } from '../../shared/model/text_files.ts';
import { goldenFolder } from '../support/golden.ts';
import { vocabularyFolder } from '../support/downloads.ts';
import { projectPath } from '../support/project.ts';

const golden = JSON.parse(readFileSync(goldenFolder('vocabularies.json'), 'utf8')) as {
  readonly texts: readonly string[];
  readonly ids: Readonly<Record<string, readonly (readonly number[])[]>>;
};

function folderOf(name: string): string {
  const folder = vocabularyFolder(name);
  assert(existsSync(folder), `${folder} is not there: \`npm test\` fetches it`);
  return folder;
}

function libraryOf(name: string): LibraryTokenizer {
  const { tokenizer, config } = readTextFiles(folderOf(name));
  return openLibrary(JSON.parse(tokenizer), JSON.parse(config));
}

interface Rendered {
  readonly model: string;
  readonly context: Readonly<Record<string, unknown>>;
  readonly text?: string;
  readonly error?: string;
}

const rendered = JSON.parse(readFileSync(goldenFolder('templates/real.json'), 'utf8')) as readonly Rendered[];

describe.each(Object.keys(golden.ids))('%s', (name) => {
  test('its chat template makes of lists of messages what the reference makes of them, and refuses what it refuses', () => {
    const { chat_template: source } = JSON.parse(readTextFiles(folderOf(name)).config) as { chat_template: string };
    const template = new ChatTemplate(source, () => new Date(2026, 6, 4, 9, 5, 3));
    const ofModel = rendered.filter(({ model }) => model === name);
    expect(ofModel.length).toBeGreaterThan(20);
    for (const { context, text, error } of ofModel) {
      if (text !== undefined) expect(template.render(context), JSON.stringify(context)).toBe(text);
      else {
        // Errors that the template raises must match; Python's own messages need not.
        const isOwn = source.includes((error ?? '').slice(0, 30));
        expect(() => template.render(context), JSON.stringify(context)).toThrow(isOwn ? error : undefined);
      }
    }
  });

  const library = libraryOf(name);
  const fast = FastEncoder.create(library);
  assert(fast, 'our own encoder has it');

  test('ids are the reference’s', () => {
    expect(golden.texts.length).toBeGreaterThan(80);
    golden.texts.forEach((text, i) => {
      assert.deepEqual([...fast.encode(text, i % 2 === 0)], golden.ids[name]?.[i], JSON.stringify(text));
    });
  });

  test('random texts, long and short, met before and not, are the library’s', () => {
    const random = new Random(19);
    const long = readFileSync(projectPath('README.md'), 'utf8');
    for (let turn = 0; turn < 120; turn++) {
      const parts = Array.from({ length: 1 + random.below(5) }, () => {
        const text = golden.texts[random.below(golden.texts.length)] ?? '';
        const start = random.below(text.length + 1);
        return random.below(3) === 0 ? long.slice(random.below(1_000), random.below(30_000)) : text.slice(start);
      });
      const text = parts.join('');
      const wanted = library.encode(text, { add_special_tokens: turn % 2 === 0 }).ids;
      assert.deepEqual([...fast.encode(text, turn % 2 === 0)], wanted, JSON.stringify(text.slice(0, 200)));
    }
  });
});
