/** Parts of checkpoints that are not served, of multimodal ones and for predicting several tokens: their tensors are left out. */

const NEXT_TOKENS = 'multi-token prediction';

/** Prefixes of tensor names, by the part of the model that they belong to. */
const parts: readonly (readonly [part: string, prefix: RegExp])[] = [
  ['vision', /^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|embed_vision)\./],
  ['audio', /^(model\.)?(audio_tower|embed_audio)\./],
  [NEXT_TOKENS, /^(model\.)?mtp\./],
];

/** Tensors that a layer has which predicts further tokens (DeepSeek and GLM call it nextn), and no other. */
const NEXTN = /^model\.layers\.(\d+)\.(eh_proj|shared_head|enorm|hnorm)\b/;
const LAYER = /^model\.layers\.(\d+)\./;

/** Returns the numbers of the layers that predict further tokens, after those of the model itself. */
function nextLayers(tensors: Iterable<string>): ReadonlySet<string> {
  return new Set([...tensors].flatMap((tensor) => NEXTN.exec(textName(tensor))?.[1] ?? []));
}

/** Returns the usual name of a tensor of a multimodal model's text part, which has a prefix `language_model.`. */
export function textName(name: string): string {
  return name.replace(/^(model\.)?language_model\./, '$1');
}

/** Returns the part that is left out to which a tensor belongs; undefined for a tensor of the text model. */
function partOf(tensor: string, nextn: ReadonlySet<string>): string | undefined {
  const name = textName(tensor);
  if (nextn.has(LAYER.exec(name)?.[1] ?? '')) return NEXT_TOKENS;
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
  const nextn = nextLayers(Object.keys(weightMap));
  for (const [tensor, file] of Object.entries(weightMap))
    partsByFile.set(file, (partsByFile.get(file) ?? new Set()).add(partOf(tensor, nextn)));
  const read = [...partsByFile].flatMap(([file, found]) => (found.has(undefined) ? [file] : []));
  const unread = [...partsByFile].flatMap(([file, found]) =>
    found.has(undefined) ? [] : [{ file, parts: [...found].flatMap((part) => part ?? []) }],
  );
  return { read, unread };
}

/** Returns a clause for the log that names the parts whose tensors are left out; none for a model that is served whole. */
export function leftOut(tensors: Iterable<string>): string[] {
  const names = [...tensors];
  const nextn = nextLayers(names);
  const found = parts.flatMap(([part]) => {
    const count = names.filter((name) => partOf(name, nextn) === part).length;
    return count > 0 ? [`${part} (${count} tensor${count === 1 ? '' : 's'})`] : [];
  });
  return found.length > 0 ? [`left out: ${found.join(', ')}`] : [];
}
