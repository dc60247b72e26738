/** A copy of the demo model that calls tools and thinks, with a context that an agent's system prompt fits in. */
import { readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { temporaryFolder } from '../../support/cluster.ts';
import { projectPath } from '../../support/project.ts';

const source = projectPath('config/models/harbour-tools');
/** Tokens of context that the model was trained with. */
const TRAINED = 2_048;
const FACTOR = 8;
/** Tokens of context of the copy. */
const CONTEXT = FACTOR * TRAINED;

const changes: Readonly<Record<string, object>> = {
  'config.json': {
    max_position_embeddings: CONTEXT,
    // YaRN keeps what the model was taught beyond its trained positions: it goes on to call, think and end its answers.
    rope_scaling: { rope_type: 'yarn', factor: FACTOR, original_max_position_embeddings: TRAINED },
  },
  'tokenizer_config.json': { model_max_length: CONTEXT },
};

/** Makes the folder: links to the model's files, but for the changed ones. The caller calls `remove`. */
export function longContextModel(): { readonly path: string; readonly remove: () => void } {
  const folder = temporaryFolder();
  for (const name of readdirSync(source)) {
    const change = changes[name];
    const [from, to] = [join(source, name), join(folder.path, name)];
    if (change === undefined) symlinkSync(from, to);
    else {
      const kept = JSON.parse(readFileSync(from, 'utf8')) as object;
      writeFileSync(to, JSON.stringify({ ...kept, ...change }));
    }
  }
  return folder;
}
