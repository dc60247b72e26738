/** Parts of multimodal checkpoints that are not served: their tensors are left out. */

/** Prefixes of tensor names, by the part of the model that they belong to. */
const parts: readonly (readonly [part: string, prefix: RegExp])[] = [
  ['vision', /^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|embed_vision)\./],
  ['audio', /^(model\.)?(audio_tower|embed_audio)\./],
  ['multi-token prediction', /^(model\.)?mtp\./],
];

/** Returns the usual name of a tensor of a multimodal model's text part, which has a prefix `language_model.`. */
export function textName(name: string): string {
  return name.replace(/^(model\.)?language_model\./, '$1');
}

/** Returns the part that is left out to which a tensor belongs; undefined for a tensor of the text model. */
function partOf(tensor: string): string | undefined {
  const name = textName(tensor);
  return parts.find(([, prefix]) => prefix.test(name))?.[0];
}

/** A file of a sharded model that holds tensors of left-out parts only, and which parts these are. */
export interface UnreadShard {
  readonly file: string;
  readonly parts: readonly string[];
}

/**
 * Divides the files of a sharded model, in the order in which its index `weightMap` (tensor to file) first names them, into those with a
 * tensor that may be read and those without.
 */
export function dividedShards(weightMap: Readonly<Record<string, string>>): {
  readonly read: readonly string[];
  readonly unread: readonly UnreadShard[];
} {
  const partsByFile = new Map<string, Set<string | undefined>>();
  for (const [tensor, file] of Object.entries(weightMap))
    partsByFile.set(file, (partsByFile.get(file) ?? new Set()).add(partOf(tensor)));
  const read = [...partsByFile].flatMap(([file, found]) => (found.has(undefined) ? [file] : []));
  const unread = [...partsByFile].flatMap(([file, found]) =>
    found.has(undefined) ? [] : [{ file, parts: [...found].flatMap((part) => part ?? []) }],
  );
  return { read, unread };
}

/** Returns a clause for the log that names the parts whose tensors are left out; none for a model that is served whole. */
export function leftOut(tensors: Iterable<string>): string[] {
  const names = [...tensors];
  const found = parts.flatMap(([part, prefix]) => {
    const count = names.filter((name) => prefix.test(name)).length;
    return count > 0 ? [`${part} (${count} tensor${count === 1 ? '' : 's'})`] : [];
  });
  return found.length > 0 ? [`left out: ${found.join(', ')}`] : [];
}
