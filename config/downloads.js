/** Where what tests download, and shaders that they compile, are kept: outside of the project, so that `npm ci` and other clones have them. */
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

/** Folder for what is not whole yet, on the same disk: it is renamed to its place. Other clones look for downloads at the same time. */
export const stagingFolder = () => join(root, `staged-${process.pid}`);

/** Folder of the executable of a version of Node. */
export const nodeFolder = (version) => join(root, `node-${version}`);

/** Folder of a newer Mesa and all that it needs, beside the machine's own. */
export const mesa26Folder = join(root, 'mesa26');

/** Folder in which a software or emulated driver keeps the shaders that it has compiled; it knows its own version. */
export const shaderFolder = (name) => join(root, `shaders-${name}`);
