/** A report as one page of HTML that needs no network: sentences, charts, tables. `report_page.html` has its styles. */
import { readFileSync } from 'node:fs';
import { escaped } from './charts.ts';

const TITLE = '<!-- title -->';
const CONTENT = '<!-- content -->';

/** Returns the text of an HTML file with a title, which is also its heading, and the given parts, which are HTML themselves. */
export function reportPage(title: string, parts: readonly string[]): string {
  const page = readFileSync(new URL('./report_page.html', import.meta.url), 'utf8');
  const content = [`<h1>${escaped(title)}</h1>`, ...parts].join('\n    ');
  // A replacement text would be searched for `$&` and the like.
  return page.replace(TITLE, () => escaped(title)).replace(CONTENT, () => content);
}

/** Returns texts as paragraphs. */
export function paragraphs(texts: readonly string[]): string {
  return texts.map((text) => `<p>${escaped(text)}</p>`).join('');
}

/** Returns HTML under a heading. */
export function section(title: string, content: string): string {
  return `<h2>${escaped(title)}</h2>${content}`;
}

/** Returns rows of cells as a table, the first row as its head. */
export function table([head = [], ...rows]: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[], tag: string): string =>
    `<tr>${cells.map((cell) => `<${tag}>${escaped(cell)}</${tag}>`).join('')}</tr>`;
  return `<div class="scroll"><table>${line(head, 'th')}${rows.map((cells) => line(cells, 'td')).join('')}</table></div>`;
}
