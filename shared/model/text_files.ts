/** Text of the files that make a tokenizer and a chat template: routers read the files, or get the text from an instance. */
import { existsSync, readFileSync } from 'node:fs';
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
  return {
    tokenizer: readFileSync(join(folder, 'tokenizer.json'), 'utf8'),
    config: existsSync(configPath) ? readFileSync(configPath, 'utf8') : '{}',
    template: existsSync(templatePath) ? readFileSync(templatePath, 'utf8') : undefined,
  };
}
