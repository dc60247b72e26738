/** Opens a model by its path: a folder of Hugging Face files, or a GGUF file. */
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { messageOf } from '../base/failure.ts';
import { Checkpoint } from './checkpoint.ts';
import { ModelError, readModelFolder, type Model } from './model_folder.ts';
import { readTextFiles, type TextFiles } from './text_files.ts';

/** @throws ModelError when a file is missing, unreadable or says something this program does not support. */
export async function openModel(path: string): Promise<Model> {
  const gguf = ggufPath(resolve(path));
  if (gguf !== undefined) {
    // Loaded for such a file alone: the library that reads its header is large.
    const { openGguf } = await import('./gguf/open_gguf.ts');
    return openGguf(gguf);
  }
  const folder = readModelFolder(path);
  return {
    ...folder,
    openWeights: () => Checkpoint.open(folder.path, folder.config.quantization),
    readTexts: () => Promise.resolve(folder.hasTokenizer ? textsOf(folder.path) : undefined),
  };
}

const FILE = /\.gguf$/i;
/** Matches the files of a split model except the first. */
const LATER_PART = /-(?!00001-)\d{5}-of-\d{5}\.gguf$/i;

/**
 * Returns the path of the GGUF file that `path` names: the file itself, or the only GGUF model in a folder without config.json.
 * Undefined for other folders.
 */
function ggufPath(path: string): string | undefined {
  if (!existsSync(path)) {
    if (FILE.test(path))
      throw new ModelError(`there is no model file ${path}: --model names a GGUF file, a folder, or ORG/NAME of a hub`);
    return undefined;
  }
  if (!statSync(path).isDirectory()) return path;
  if (existsSync(join(path, 'config.json'))) return undefined;
  const files = readdirSync(path).filter((name) => FILE.test(name) && !LATER_PART.test(name));
  const [only] = files;
  if (files.length > 1) throw new ModelError(`${path} has ${files.join(', ')}: name one of them`);
  return only === undefined ? undefined : join(path, only);
}

function textsOf(folder: string): TextFiles {
  try {
    return readTextFiles(folder);
  } catch (cause) {
    throw new ModelError(`the tokenizer of ${folder} cannot be read: ${messageOf(cause)}`, { cause });
  }
}
