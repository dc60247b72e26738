/**
 * The rules of language, read from words.json: no identifier or file has a name that gave way to the field's, no comment begins with a
 * word that leaves its subject out, no text has a phrase that gave way, and every exported declaration of the package, with each method of an
 * exported interface, has a doc comment. Used by eslint_sizes.config.js, whose parser reads AssemblyScript too.
 */
import { readFileSync } from 'node:fs';
import { basename, relative, sep } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
/** The lists of words.json. */
export const gone = JSON.parse(readFileSync(new URL('words.json', import.meta.url), 'utf8'));
const { openings, phrases, identifiers, parts, files, exceptions } = gone;

/** The words that a file may use all the same. */
function allowedIn(path) {
  return new Set(exceptions.filter((one) => new RegExp(one.in).test(path)).flatMap(({ words }) => words));
}

/** The words that an identifier is made of: `numLaneFrames` gives num, lane, frames. */
export function partsOf(name) {
  return (name.match(/[A-Z]+(?![a-z])|[A-Z]?[a-z]+/g) ?? []).map((part) => part.toLowerCase());
}

/** @returns what to say instead of this identifier; undefined when it may stay. */
export function betterName(name, path) {
  const bare = name.replace(/^#/, '');
  const allowed = allowedIn(path);
  if (Object.hasOwn(identifiers, bare) && !allowed.has(bare)) return identifiers[bare];
  const part = partsOf(bare).find((one) => Object.hasOwn(parts, one) && !allowed.has(one));
  return part === undefined ? undefined : `${parts[part]} for ${part}`;
}

/** @returns what to call a file or folder instead; undefined when its name may stay. */
export function betterFileName(path) {
  for (const segment of path.split('/')) {
    const stem = basename(segment).replace(/\..*$/, '');
    if (Object.hasOwn(files, stem)) return `${files[stem]} for ${stem}`;
  }
  return undefined;
}

/** The text of a comment in one line, without its delimiters. */
export function sentenceOf(comment) {
  return comment
    .split('\n')
    .map((line) => line.replace(/^\s*(\*|\/\/)? ?/, ''))
    .join(' ')
    .trim();
}

/** @returns the opening that leaves a comment without a subject; undefined when it has none. */
export function badOpening(sentence) {
  const first = /^[A-Za-z]+/.exec(sentence)?.[0];
  return openings.includes(first) ? first : undefined;
}

/** The space between two words of a text, which may be a line end of a comment. */
const GAP = String.raw`\s+(?:(?:\*|//|#)\s+)?`;
const patterns = Object.entries(phrases).map(([word, { pattern, say }]) => ({
  word,
  say,
  pattern: new RegExp(String.raw`\b(?:${pattern.replaceAll(' ', GAP)})(?!\w)`, 'gi'),
}));

/** @returns the phrases of a text that gave way: what stands there, from which character on, and what to say instead. */
export function badPhrases(text, path) {
  const allowed = allowedIn(path);
  return patterns
    .filter(({ word }) => !allowed.has(word))
    .flatMap(({ pattern, say }) =>
      [...text.matchAll(pattern)].map((match) => ({ found: match[0], index: match.index, say })),
    );
}

const pathOf = (context) => relative(root, context.filename).split(sep).join('/');

const goneWords = {
  meta: { type: 'suggestion', messages: { gone: '{{name}} gave way (config/words.json): say {{better}}' } },
  create(context) {
    const path = pathOf(context);
    const check = (node, name) => {
      const better = betterName(name, path);
      if (better) context.report({ node, messageId: 'gone', data: { name, better } });
    };
    return {
      Program(node) {
        const better = betterFileName(path);
        if (better) context.report({ node, messageId: 'gone', data: { name: path, better } });
      },
      Identifier(node) {
        check(node, node.name);
      },
      PrivateIdentifier(node) {
        check(node, node.name);
      },
    };
  },
};

/** Comments on lines of their own that follow one another are one. */
function isContinued(comments, i) {
  const [before, comment] = [comments[i - 1], comments[i]];
  return comment.type === 'Line' && before?.type === 'Line' && before.loc.end.line === comment.loc.start.line - 1;
}

const sentences = {
  meta: { type: 'suggestion', messages: { opening: 'a comment that begins with "{{first}}" has no subject' } },
  create(context) {
    const comments = context.sourceCode.getAllComments();
    return {
      Program() {
        for (const [i, comment] of comments.entries()) {
          if (isContinued(comments, i)) continue;
          const first = badOpening(sentenceOf(comment.value.replace(/^\*/, '')));
          if (first) context.report({ loc: comment.loc, messageId: 'opening', data: { first } });
        }
      },
    };
  },
};

const texts = {
  meta: { type: 'suggestion', messages: { gone: '"{{found}}" gave way (config/words.json): say {{say}}' } },
  create(context) {
    const { sourceCode } = context;
    return {
      Program() {
        for (const { found, index, say } of badPhrases(sourceCode.text, pathOf(context)))
          context.report({ loc: sourceCode.getLocFromIndex(index), messageId: 'gone', data: { found, say } });
      },
    };
  },
};

/** The interface whose methods are kernels: each kernel has its comment in wasm/as. */
const KERNELS = 'kernels/wasm/kernel_exports.ts';

const documented = {
  meta: { type: 'suggestion', messages: { missing: 'the exported {{name}} has no doc comment' } },
  create(context) {
    const { sourceCode } = context;
    const isOfKernels = pathOf(context) === KERNELS;
    const seen = new Set();
    const hasComment = (node) => {
      // Decorators of AssemblyScript, and directives for the compiler, stand between the comment and the declaration.
      let line = node.loc.start.line - 2;
      while (/^\s*(@|\/\/)/.test(sourceCode.lines[line] ?? '')) line--;
      const comment = sourceCode.getAllComments().find(({ loc }) => loc.end.line - 1 === line);
      return comment?.type === 'Block' && comment.value.startsWith('*');
    };
    const checkNode = (node, name) => {
      // One comment is enough for overloads.
      if (seen.has(name)) return;
      seen.add(name);
      if (!hasComment(node)) context.report({ node, messageId: 'missing', data: { name } });
    };
    const check = (node) => {
      const { declaration } = node;
      if (!declaration) return;
      const name = declaration.id?.name ?? declaration.declarations?.[0]?.id.name ?? 'declaration';
      checkNode(node, name);
      if (declaration.type !== 'TSInterfaceDeclaration' || isOfKernels) return;
      for (const member of declaration.body.body)
        if (member.type === 'TSMethodSignature') checkNode(member, `${name}.${sourceCode.getText(member.key)}`);
    };
    return { ExportNamedDeclaration: check, ExportDefaultDeclaration: check };
  },
};

export const words = { rules: { gone: goneWords, sentences, texts, documented } };
