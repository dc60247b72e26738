/** Folder and shape of a configuration that a test writes. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { shapeOf } from '../../shared/engine/architectures/registry.ts';
import { readModelFolder, type ModelFolder } from '../../shared/model/model_folder.ts';
import type { ModelShape } from '../../shared/model/model_shape.ts';

/** Returns the model folder whose config.json is `config`, and which has no other file. @throws ModelError where it is refused. */
export function folderWith(config: Readonly<Record<string, unknown>>): ModelFolder {
  const folder = mkdtempSync(join(tmpdir(), 'config-'));
  try {
    writeFileSync(join(folder, 'config.json'), JSON.stringify(config));
    return readModelFolder(folder);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Returns the shape that `config` describes as a config.json. @throws ModelError where it is refused. */
export function shapeWith(config: Readonly<Record<string, unknown>>): ModelShape {
  return shapeOf(folderWith(config));
}
