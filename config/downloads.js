/** Where what tests download, and shaders that they compile, are kept: outside of the project, so that `npm ci` and other clones have them. */
import { mkdirSync, mkdtempSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Release of the npm packages that the vocabularies come from. */
export const VOCABULARIES_VERSION = '3.7.2';

const root = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'penstock-tests');

/** Folder of the folders of all vocabularies. */
export const vocabulariesFolder = join(root, `vocabularies-${VOCABULARIES_VERSION}`);

/** Folder of the vocabulary `name`. */
export const vocabularyFolder = (name) => join(vocabulariesFolder, name);

/** Folder that a Debian package is unpacked into. */
export const debianFolder = (name) => join(root, `debian-${name}`);

/** Makes a folder for what is not whole yet, on the same disk: it is renamed to its place. Other clones look for downloads at the same time. */
export function stagingFolder() {
  mkdirSync(root, { recursive: true });
  return mkdtempSync(join(root, 'staged-'));
}

/** Folder of the executable of a version of Node. */
export const nodeFolder = (version) => join(root, `node-${version}`);

/** Folder of a newer Mesa and all that it needs, next to the machine's own; `name` says which packages. */
export const mesaFolder = (name) => join(root, `mesa-${name}`);

/** Folder in which a software or emulated driver keeps the shaders that it has compiled; it knows its own version. */
export const shaderFolder = (name) => join(root, `shaders-${name}`);
