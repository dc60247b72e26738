/** Contents that clients divide into parts, by one rule for every API: parts of text are lines, and what is no text is named. */

/** Joins the texts of a content's parts, each on a line of its own; empty ones add none. */
export function joinParts(texts: readonly string[]): string {
  return texts.filter((text) => text !== '').join('\n');
}

/**
 * Returns the text in the place of a part of a tool's result that is no text, such as `image_url`, and adds its path to `ignored`. An agent
 * cannot take a result back, and sends it with every further request.
 */
export function leftOutPart(type: string, path: string, ignored: string[]): string {
  ignored.push(`${path}.${type}`);
  const kind = type
    .replace(/^input_/, '')
    .replace(/_url$/, '')
    .slice(0, 64);
  return `[${kind} left out: this model reads text only]`;
}
