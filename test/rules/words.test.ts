/** The words of config/words.json where lint does not look: shaders, the protocol file, pages and other texts, and names of files of every kind. Budget: 5 s. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { test } from 'vitest';
import { projectPath } from '../support/project.ts';

/** The rules that lint uses too. */
const { betterName, betterFileName, badOpening, badPhrases, sentenceOf, gone } = (await import(
  new URL('config/eslint_words.js', `file://${projectPath('./')}`).href
)) as {
  betterName: (name: string, path: string) => string | undefined;
  betterFileName: (path: string) => string | undefined;
  badOpening: (sentence: string) => string | undefined;
  badPhrases: (text: string, path: string) => readonly { found: string; index: number; say: string }[];
  sentenceOf: (comment: string) => string;
  gone: {
    readonly identifiers: Record<string, string>;
    readonly files: Record<string, string>;
    readonly phrases: Record<string, { readonly refuses: readonly string[]; readonly allows: readonly string[] }>;
  };
};

const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
  cwd: projectPath('.'),
  encoding: 'utf8',
})
  .trim()
  .split('\n')
  .filter((path) => !path.startsWith('test/golden/'));
const texts = files
  .filter((path) => /\.(wgsl|proto)$/.test(path))
  .map((path) => ({ path, lines: readFileSync(projectPath(path), 'utf8').split('\n') }));

test('no file has a name that gave way', () => {
  assert.deepEqual(
    files.flatMap((path) => betterFileName(path) ?? []),
    [],
  );
});

test('no identifier of a shader or of the protocol has', () => {
  const wrong = texts.flatMap(({ path, lines }) =>
    lines.flatMap((line, i) =>
      [...line.replace(/\/\/.*/, '').matchAll(/[A-Za-z_]\w*/g)].flatMap(([name]) => {
        const better = betterName(name, path);
        return better === undefined ? [] : [`${path}:${i + 1}: ${name}: ${better}`];
      }),
    ),
  );
  assert.deepEqual(wrong, []);
});

test('no comment there leaves its subject out', () => {
  const isComment = (line: string | undefined): boolean => /^\s*\/\//.test(line ?? '');
  const wrong = texts.flatMap(({ path, lines }) =>
    lines.flatMap((line, i) => {
      const [, comment] = /\/\/(.*)$/.exec(line) ?? [];
      if (comment === undefined || (isComment(line) && isComment(lines[i - 1]))) return [];
      const opening = badOpening(sentenceOf(comment));
      return opening === undefined ? [] : [`${path}:${i + 1}: ${opening}`];
    }),
  );
  assert.deepEqual(wrong, []);
});

test('no text that is no TypeScript has a phrase that gave way', () => {
  const isText = (path: string): boolean => /\.(c|css|html|json|md|proto|py|txt|wgsl|yaml)$/.test(path);
  const wrong = files
    .filter((path) => isText(path) && path !== 'config/words.json')
    .flatMap((path) => {
      const text = readFileSync(projectPath(path), 'utf8');
      return badPhrases(text, path).map(
        ({ found, index, say }) => `${path}:${text.slice(0, index).split('\n').length}: ${found}: ${say}`,
      );
    });
  assert.deepEqual(wrong, []);
});

test('the rules find what they are for', () => {
  for (const name of Object.keys(gone.identifiers)) assert(betterName(name, 'services/x.ts'), name);
  for (const name of Object.keys(gone.files)) assert(betterFileName(`shared/${name}.ts`), name);
  for (const { refuses, allows } of Object.values(gone.phrases)) {
    for (const text of refuses) assert.equal(badPhrases(text, 'services/x.ts').length, 1, text);
    for (const text of allows) assert.deepEqual(badPhrases(text, 'services/x.ts'), []);
  }
  assert(betterName('numLaneFrames', 'shared/net/x.ts'));
  assert.equal(betterName('numLanes', 'kernels/wasm/x.ts'), undefined);
  assert.equal(badOpening(sentenceOf(' * Of each region.')), 'Of');
  assert.equal(badOpening(sentenceOf(' * Office hours.')), undefined);
});
