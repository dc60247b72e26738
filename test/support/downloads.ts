/** Where `npm test` keeps what it downloads: config/downloads.js says it. */
import { projectPath } from './project.ts';

interface Downloads {
  readonly vocabulariesFolder: string;
  readonly vocabularyFolder: (name: string) => string;
  readonly debianFolder: (name: string) => string;
  readonly shaderFolder: (name: string) => string;
}

export const { vocabulariesFolder, vocabularyFolder, debianFolder, shaderFolder } = (await import(
  projectPath('config/downloads.js')
)) as Downloads;
