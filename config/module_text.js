/** Text of modules in dist/: without types, with relative imports of the files that were built. */
import { init, parse } from 'es-module-lexer';
import { transform } from 'esbuild';

/** How every module is transformed. The types of the project are checked elsewhere, so its configuration is not read for each file. */
export const MODULE_OPTIONS = {
  format: 'esm',
  platform: 'node',
  target: 'node20.19',
  logLevel: 'silent',
  tsconfigRaw: { compilerOptions: { verbatimModuleSyntax: true, target: 'ES2023' } },
};

/** Returns a module's text with relative imports that end in .js where they ended in .ts; `onImport` gets each of them. */
export function withBuiltImports(path, code, onImport) {
  let text = '';
  let at = 0;
  for (const { n: name, e: end, d: dynamic } of parse(code, path)[0]) {
    if (!name?.startsWith('.') || !name.endsWith('.ts')) continue;
    onImport?.(name);
    // The end of a static specifier is that of its text, of a dynamic one that of its quotes.
    const last = dynamic >= 0 ? end - 1 : end;
    text += `${code.slice(at, last - 2)}js`;
    at = last;
  }
  return text + code.slice(at);
}

/** Returns the module `path` as it is built of `source`. Rejects with esbuild's error for what does not parse. */
export async function moduleText(path, source) {
  await init;
  const { code } = await transform(source, { ...MODULE_OPTIONS, loader: 'ts', sourcefile: path });
  return withBuiltImports(path, code);
}
