/** How a GGUF model that is split into files names them. */

/** No model is split into more. */
const MAX_FILES = 2_000;
const SPLIT = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/;

/** All files of a model, by the first of them, or its only one. @throws Error in words when it is another than the first. */
export function ggufParts(path: string): string[] {
  const [, stem, number, total] = SPLIT.exec(path) ?? [];
  if (stem === undefined) return [path];
  const count = Number(total);
  const part = (i: number): string => `${stem}-${String(i).padStart(5, '0')}-of-${total}.gguf`;
  if (Number(number) !== 1) throw new Error(`${path} is one of ${count} files: name the first, ${part(1)}`);
  if (count < 1 || count > MAX_FILES) throw new Error(`${path} is one of ${count} files, which no model has`);
  return Array.from({ length: count }, (_, i) => part(i + 1));
}
