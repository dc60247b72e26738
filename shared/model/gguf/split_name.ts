/** File names of a GGUF model that is split into several files. */

/** Most files of a split model. */
const MAX_FILES = 2_000;
const SPLIT = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/;

/** Returns the paths of all files of the model that begins with `path`. @throws Error when `path` is not the first of its files. */
export function ggufParts(path: string): string[] {
  const [, stem, number, total] = SPLIT.exec(path) ?? [];
  if (stem === undefined) return [path];
  const count = Number(total);
  const part = (i: number): string => `${stem}-${String(i).padStart(5, '0')}-of-${total}.gguf`;
  if (Number(number) !== 1) throw new Error(`${path} is one of ${count} files: name the first, ${part(1)}`);
  if (count < 1 || count > MAX_FILES) throw new Error(`${path} is one of ${count} files, which no model has`);
  return Array.from({ length: count }, (_, i) => part(i + 1));
}
