/** The Markdown pages of the project, and what they contain: links, code spans, blocks of commands. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { projectPath } from './project.ts';

/** Folders whose pages are somebody else's. */
const FOREIGN = /^(node_modules|dist|test\/golden)\//;

/** Paths of all pages, relative to the project. */
export function pages(): string[] {
  const listed = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '*.md'], {
    cwd: projectPath('.'),
    encoding: 'utf8',
  });
  return listed
    .trim()
    .split('\n')
    .filter((path) => !FOREIGN.test(path));
}

export function pageText(path: string): string {
  return readFileSync(projectPath(path), 'utf8');
}

/** A page without its fenced blocks. */
function prose(text: string): string {
  return text.replace(/^```[\s\S]*?^```$/gm, '');
}

/** Targets of a page's links, those to other sites left out. */
export function linksOf(text: string): string[] {
  return [...prose(text).matchAll(/\]\(([^)\s]+)\)/g)]
    .map(([, target]) => target ?? '')
    .filter((target) => !/^(https?|mailto):/.test(target));
}

/** Anchors of a page, as GitHub makes them of its headings. */
export function anchorsOf(text: string): Set<string> {
  const anchors = [...prose(text).matchAll(/^#+ (.+)$/gm)].map(([, heading]) =>
    (heading ?? '')
      .toLowerCase()
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );
  return new Set(anchors);
}

/** Code spans of a page's prose. */
export function spansOf(text: string): string[] {
  // A span may go on in the next line, never beyond its paragraph.
  return prose(text)
    .split(/\n\s*\n/)
    .flatMap((paragraph) => [...paragraph.matchAll(/`([^`]+)`/g)])
    .map(([, span]) => (span ?? '').replace(/\s*\n\s*/g, ' '));
}

/** Blocks of commands: those that are fenced as `sh`. */
export function commandBlocksOf(text: string): string[] {
  return [...text.matchAll(/^```sh\n([\s\S]*?)^```$/gm)].map(([, block]) => (block ?? '').trim());
}
