/** The parts that all reference pages share: the note at their head, and tables. */

export const NOTE = '<!-- Made by config/reference.js: `npm run reference` writes it anew. -->';

const cell = (text) => String(text).replaceAll('|', '\\|').replaceAll('<', '&lt;').replaceAll('\n', ' ');

/** Returns a Markdown table; `head` has the names of its columns. */
export const table = (head, rows) =>
  [head, head.map(() => '---'), ...rows].map((row) => `| ${row.map((one) => cell(one)).join(' | ')} |`).join('\n');
