/** What a tokenizer and a chat template are made of, as text: what routers are given, or ask instances for. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export interface TextFiles {
  /** tokenizer.json */
  readonly tokenizer: string;
  /** tokenizer_config.json; `{}` of a model without one. */
  readonly config: string;
  /** Of a file of its own, which newer models have; undefined: the configuration has it, if any. */
  readonly template?: string | undefined;
}

/** @throws Error when tokenizer.json is missing, or one of them cannot be read. */
export function readTextFiles(folder: string): TextFiles {
  const configPath = join(folder, 'tokenizer_config.json');
  const templatePath = join(folder, 'chat_template.jinja');
  return {
    tokenizer: readFileSync(join(folder, 'tokenizer.json'), 'utf8'),
    config: existsSync(configPath) ? readFileSync(configPath, 'utf8') : '{}',
    template: existsSync(templatePath) ? readFileSync(templatePath, 'utf8') : undefined,
  };
}
