/** WGSL structs of words that the host writes: made from its own table of fields, so that no position stands twice. */

type Word = 'u32' | 'i32';

/**
 * Returns the WGSL text of a struct `Name` with the fields in their order, in snake case, of `NAME_WORDS`, and of `name_at(at)`, which reads
 * one from the words of `step` at `at`. `more`: fields that are not among the words, 0 when it has read one.
 */
export function wordsStruct(
  name: string,
  fields: Readonly<Record<string, Word>>,
  more: Readonly<Record<string, Word>>,
): string {
  const snake = snakeCase(name);
  const all = Object.entries({ ...fields, ...more });
  const reads = Object.entries(fields).map(([field, type], i) => {
    const word = `step[at + ${i}]`;
    return `  one.${snakeCase(field)} = ${type === 'i32' ? `bitcast<i32>(${word})` : word};`;
  });
  return [
    `const ${snake.toUpperCase()}_WORDS = ${Object.keys(fields).length}u;`,
    '',
    `struct ${name} {`,
    ...all.map(([field, type]) => `  ${snakeCase(field)}: ${type},`),
    '}',
    '',
    `fn ${snake}_at(at: u32) -> ${name} {`,
    `  var one: ${name};`,
    ...reads,
    '  return one;',
    '}',
    '',
  ].join('\n');
}

function snakeCase(name: string): string {
  return name.replaceAll(/(?<!^)[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
}
