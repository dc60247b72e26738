/** The format in which a family's calls can be enforced. */
import type { CallForm } from '../grammar/text_rule.ts';
import type { ToolFamily } from './tool_tables.ts';

/**
 * Returns the form in which a family writes calls, where a grammar can have it: some families have two, of which the chat template has one.
 * Undefined when calls of this family are enforced as JSON.
 */
export function callFormOf(family: ToolFamily | undefined, template: string | undefined): CallForm | undefined {
  switch (family) {
    case 'hermes':
    case 'llama3_json':
    case 'json':
    case 'granite':
    case 'harmony':
      return family;
    case 'mistral':
      return template?.includes('[ARGS]') === true ? 'mistral_args' : 'mistral';
    case 'phi4':
      return template?.includes('functools') === true ? 'phi4_functools' : 'phi4';
    case 'pythonic':
    case 'qwen3_xml':
    case 'gemma4':
    case 'glm':
    case undefined:
      return undefined;
  }
}

/** Returns the family whose parser reads calls of a form. */
export function familyOf(form: CallForm): ToolFamily {
  if (form === 'mistral_args') return 'mistral';
  return form === 'phi4_functools' ? 'phi4' : form;
}
