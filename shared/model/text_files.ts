/** Text of the files that make a tokenizer and a chat template: routers read the files, or get the text from an instance. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** Text of a model's tokenizer files. */
export interface TextFiles {
  /** tokenizer.json */
  readonly tokenizer: string;
  /** Text of tokenizer_config.json; `{}` for a model without one. */
  readonly config: string;
  /** Text of chat_template.jinja, which newer models have; undefined where `config` holds the template, or there is none. */
  readonly template?: string | undefined;
}

/** Reads the files from a model folder. @throws Error when tokenizer.json is missing, or a file cannot be read. */
export function readTextFiles(folder: string): TextFiles {
  const configPath = join(folder, 'tokenizer_config.json');
  const templatePath = join(folder, 'chat_template.jinja');
  const tokenizer = readFileSync(join(folder, 'tokenizer.json'), 'utf8');
  const config = existsSync(configPath) ? readFileSync(configPath, 'utf8') : '{}';
  const template = existsSync(templatePath) ? readFileSync(templatePath, 'utf8') : undefined;
  const named = readNamed(join(folder, NAMED_TEMPLATES));
  return named.length === 0
    ? { tokenizer, config, template }
    : { tokenizer, config: withNamed(config, template, named), template: undefined };
}

/** Folder of a model's templates by name: files `NAME.jinja`. */
export const NAMED_TEMPLATES = 'additional_chat_templates';

/** A chat template in the list of tokenizer_config.json. */
export interface NamedTemplate {
  readonly name: string;
  readonly template: string;
}

/** Returns the list of a model's chat templates: the usual one under the name that tokenizer_config.json has for it, and those by name. */
export function namedTemplates(usual: string | undefined, named: readonly NamedTemplate[]): NamedTemplate[] {
  const others = usual === undefined ? named : named.filter(({ name }) => name !== 'default');
  return usual === undefined ? [...others] : [{ name: 'default', template: usual }, ...others];
}

function readNamed(folder: string): NamedTemplate[] {
  if (!existsSync(folder)) return [];
  const files = readdirSync(folder).filter((file) => file.endsWith('.jinja'));
  return files.sort().map((file) => ({
    name: file.slice(0, -'.jinja'.length),
    template: readFileSync(join(folder, file), 'utf8'),
  }));
}

/** Returns tokenizer_config.json with all templates in it; a file of the usual one goes before what is there. */
function withNamed(config: string, file: string | undefined, named: readonly NamedTemplate[]): string {
  const read = JSON.parse(config) as { readonly chat_template?: unknown };
  const own = read.chat_template;
  const listed = Array.isArray(own) ? (own as readonly NamedTemplate[]) : [];
  const usual = file ?? (typeof own === 'string' ? own : listed.find(({ name }) => name === 'default')?.template);
  const names = new Set(named.map(({ name }) => name));
  const all = [...listed.filter(({ name }) => !names.has(name)), ...named];
  return JSON.stringify({ ...read, chat_template: namedTemplates(usual, all) });
}
