/** Parts of multimodal checkpoints that are not served: their tensors are left out. */

/** Prefixes of tensor names, by the part of the model that they belong to. */
const parts: readonly (readonly [part: string, prefix: RegExp])[] = [
  ['vision', /^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector|embed_vision)\./],
  ['audio', /^(model\.)?(audio_tower|embed_audio)\./],
  ['multi-token prediction', /^(model\.)?mtp\./],
];

/** Returns a clause for the log that names the parts whose tensors are left out; none for a model that is served whole. */
export function leftOut(tensors: Iterable<string>): string[] {
  const names = [...tensors];
  const found = parts.flatMap(([part, prefix]) => {
    const count = names.filter((name) => prefix.test(name)).length;
    return count > 0 ? [`${part} (${count} tensor${count === 1 ? '' : 's'})`] : [];
  });
  return found.length > 0 ? [`left out: ${found.join(', ')}`] : [];
}
