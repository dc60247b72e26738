/** Debian's archive, as this machine's own configuration names it. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';

/** Returns the Debian archive for this release: the first one that this machine's own apt configuration names. */
export function mirror(codename) {
  const folder = '/etc/apt/sources.list.d';
  const files = [
    '/etc/apt/sources.list',
    ...(existsSync(folder) ? readdirSync(folder).map((name) => `${folder}/${name}`) : []),
  ].filter((file) => existsSync(file) && /\.(list|sources)$/.test(file) && !file.includes('penstock'));
  const isMain = (suites) => suites.split(/\s+/).includes(codename);
  for (const file of files) {
    const text = readFileSync(file, 'utf8');
    // One line each: deb [options] URI SUITE COMPONENTS.
    for (const [, options = '', uri, suite] of text.matchAll(/^\s*deb\s+(\[[^\]]*\]\s+)?(\S+)\s+(\S+)/gm)) {
      if (isMain(suite)) return { uri, options: options.trim() };
    }
    // Paragraphs of fields.
    for (const paragraph of text.split(/\n\s*\n/)) {
      const field = (name) => new RegExp(`^${name}:\\s*(.+)$`, 'mi').exec(paragraph)?.[1]?.trim() ?? '';
      if (!/\bdeb\b/.test(field('Types')) || !isMain(field('Suites'))) continue;
      const key = field('Signed-By');
      return { uri: field('URIs').split(/\s+/)[0], options: key.startsWith('/') ? `[signed-by=${key}]` : '' };
    }
  }
  return undefined;
}
