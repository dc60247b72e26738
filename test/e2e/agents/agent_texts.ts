/** Texts that agents send, made up for the tests: system prompts of any length, project instructions, results of tools. */
import { Random } from '../../../shared/base/random.ts';

const rules: readonly (readonly string[])[] = [
  ['Read', 'Look at', 'Search', 'List', 'Compare', 'Check'],
  ['the file', 'the folder', 'the failing test', 'the last commit', 'every caller', 'the configuration', 'the log'],
  ['before you change it', 'when the user names it', 'once per task', 'with the smallest tool that does it'],
  ['; do not guess', ', and say so in one sentence', '; a command that waits for input is never started', ''],
];
const headings = ['Tone', 'Tasks', 'Tools', 'Files', 'Commits', 'Tests', 'Plans', 'Errors', 'Safety', 'Answers'];
const examples = [
  ['How many tests fail?', '3 of 41, all in `parser_test`.'],
  ['Which port does it listen on?', '8000, see `server.toml:12`.'],
  ['Rename `load` to `read_config`.', 'Done in 4 files; the tests pass.'],
];

/** Returns rules for an agent, in sections of Markdown with examples, of at least this many characters. */
export function systemPrompt(seed: number, minCharacters: number): string {
  const random = new Random(seed);
  const parts: string[] = [];
  let length = 0;
  for (let i = 0; length < minCharacters; i++) {
    const lines = Array.from({ length: 8 }, () => {
      const words = rules.map((choices) => choices[random.below(choices.length)]);
      return ` - ${words.slice(0, 3).join(' ')}${words[3]}.`;
    });
    const [asked, told] = examples[i % examples.length] ?? [];
    const section = `# ${headings[i % headings.length]}\n${lines.join('\n')}\n<example>\nuser: ${asked}\nyou: ${told}\n</example>\n`;
    parts.push(section);
    length += section.length + 1;
  }
  return parts.join('\n');
}

/** Project instructions as both agents send them with the first message. */
export const projectInstructions = [
  '# Harbour log',
  '',
  'A small service that keeps the log of a harbour. Run `make test` before a commit.',
  '- Sources are in `src/`, tests in `tests/`.',
  '- Locker 42 opens with code 9071.',
  '- Comments are sentences.',
].join('\n');

/** Returns the output of a listing or a search, of about this many characters. */
export function listing(seed: number, characters: number): string {
  const random = new Random(seed);
  const lines: string[] = [];
  for (let length = 0; length < characters; length += lines.at(-1)?.length ?? 1) {
    const name = ['tide', 'berth', 'locker', 'crane', 'pilot'][random.below(5)];
    lines.push(
      `src/${name}_${random.below(30)}.py:${1 + random.below(400)}:\treturn ${name}[${random.below(90)}]  # ✓`,
    );
  }
  return lines.join('\n');
}
