/**
 * Constraints that a request states for its output: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`, llama.cpp's `grammar`
 * and `json_schema`, SGLang's `regex` and `ebnf`; and vLLM's `allowed_token_ids` and `bad_words`.
 */
import { z } from 'zod';
import type { TextRule } from '../../../../shared/text/grammar/text_rule.ts';
import type { ConstraintWish } from '../../api/generation_body.ts';
import { isObject } from '../../api/neutral_value.ts';
import { ParameterFailure, type BodyLimits } from '../../api/parameter_failure.ts';

const MAX_CHOICES = 10_000;
const MAX_BAD_WORDS = 256;
const MAX_WORD_CHARACTERS = 256;

const schema = z.union([z.string(), z.record(z.string(), z.unknown()), z.boolean()], 'a JSON schema, or its JSON text');
const texts = z.array(z.string()).min(1).max(MAX_CHOICES);

/** Parameters of constraints, at chats and completions. */
export const constraintFields = {
  response_format: z
    .looseObject({
      type: z.string(),
      json_schema: z.looseObject({ schema: schema.nullish(), strict: z.boolean().nullish() }).nullish(),
      schema: schema.nullish(),
    })
    .optional(),
  structured_outputs: z
    .looseObject({
      json: schema.nullish(),
      json_object: z.boolean().nullish(),
      regex: z.string().nullish(),
      choice: texts.nullish(),
      grammar: z.string().nullish(),
      structural_tag: z.unknown().optional(),
    })
    .optional(),
  guided_json: schema.optional(),
  guided_regex: z.string().optional(),
  // An empty list says nothing.
  guided_choice: z.array(z.string()).max(MAX_CHOICES).optional(),
  guided_grammar: z.string().optional(),
  regex: z.string().optional(),
  ebnf: z.string().optional(),
  // llama.cpp takes a text, Text Generation Inference an object that names the kind.
  grammar: z
    .union([z.string(), z.looseObject({ type: z.string(), value: z.unknown() })], 'a grammar as text')
    .optional(),
  json_schema: schema.optional(),
  allowed_token_ids: z.array(z.int().nonnegative()).optional(),
  bad_words: z
    .union([
      z.literal(''),
      z.array(z.string().min(1, 'cannot be an empty text').max(MAX_WORD_CHARACTERS)).max(MAX_BAD_WORDS),
    ])
    .optional(),
};

type Fields = z.infer<z.ZodObject<typeof constraintFields>>;

/** Keys of `structured_outputs` that change how a grammar is made there, and nothing here. */
const FORMAT_KEYS = [
  'disable_any_whitespace',
  'disable_fallback',
  'disable_additional_properties',
  'whitespace_pattern',
  'backend',
  'backend_was_auto',
];

/** Reads the constraints of a body. @throws ParameterFailure when two rules are stated, or one cannot be. */
export function readConstraint(body: Fields, { vocabSize }: Pick<BodyLimits, 'vocabSize'>): ConstraintWish | undefined {
  const rules = [
    ...ofResponseFormat(body.response_format),
    ...ofStructuredOutputs(body.structured_outputs),
    ...schemaRule('guided_json', body.guided_json),
    ...textRule('regex', 'guided_regex', body.guided_regex),
    ...choiceRule('guided_choice', body.guided_choice),
    ...textRule('grammar', 'guided_grammar', body.guided_grammar),
    ...textRule('regex', 'regex', body.regex),
    ...textRule('grammar', 'ebnf', body.ebnf),
    ...ofGrammar(body.grammar),
    ...schemaRule('json_schema', body.json_schema),
  ];
  const [rule, another] = rules;
  if (rule && another) {
    const names = rules.map(({ param }) => param);
    throw new ParameterFailure(
      `${names.join(' and ')}: choose one constraint for the text, and leave the others out`,
      rule.param,
    );
  }
  const allowedTokenIds = body.allowed_token_ids?.length ? body.allowed_token_ids : undefined;
  const outside = (allowedTokenIds ?? []).filter((id) => id >= vocabSize);
  if (outside.length > 0) {
    throw new ParameterFailure(
      `allowed_token_ids: ${outside.slice(0, 8).join(', ')} are outside the vocabulary of ${vocabSize}`,
      'allowed_token_ids',
    );
  }
  const badWords = body.bad_words === '' ? [] : (body.bad_words ?? []);
  if (!rule && !allowedTokenIds && badWords.length === 0) return undefined;
  return { rule, allowedTokenIds, badWords };
}

function ofResponseFormat(format: Fields['response_format']): TextRule[] {
  if (!format) return [];
  const param = 'response_format';
  switch (format.type) {
    case 'text':
      return [];
    case 'json_object':
      // llama.cpp's form has the schema next to the type.
      return isGiven(format.schema) ? schemaRule(`${param}.schema`, format.schema) : [{ kind: 'json_object', param }];
    case 'json_schema': {
      const own = format.json_schema?.schema ?? format.schema;
      if (!isGiven(own)) {
        throw new ParameterFailure(
          'response_format.json_schema.schema: is missing; send {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}',
          'response_format.json_schema.schema',
        );
      }
      return schemaRule(`${param}.json_schema.schema`, own);
    }
    default:
      throw new ParameterFailure(
        `response_format.type: ${format.type} is not supported; use text, json_object or json_schema`,
        'response_format.type',
      );
  }
}

function ofStructuredOutputs(wish: Fields['structured_outputs']): TextRule[] {
  if (!wish) return [];
  const param = 'structured_outputs';
  const { json, json_object: isObjectWanted, regex, choice, grammar, structural_tag: tag, ...others } = wish;
  if (isGiven(tag) && tag !== '')
    throw new ParameterFailure(
      'structured_outputs.structural_tag: is not supported; leave it out',
      `${param}.structural_tag`,
    );
  const unknown = Object.keys(others).find(
    (key) => isGiven(others[key]) && !FORMAT_KEYS.includes(key) && !key.startsWith('_'),
  );
  if (unknown !== undefined) {
    throw new ParameterFailure(
      `structured_outputs.${unknown}: is not known; use json, json_object, regex, choice or grammar`,
      `${param}.${unknown}`,
    );
  }
  return [
    ...schemaRule(`${param}.json`, json),
    ...(isObjectWanted ? [{ kind: 'json_object', param: `${param}.json_object` } as const] : []),
    ...textRule('regex', `${param}.regex`, regex),
    ...choiceRule(`${param}.choice`, choice),
    ...textRule('grammar', `${param}.grammar`, grammar),
  ];
}

function ofGrammar(grammar: Fields['grammar']): TextRule[] {
  const param = 'grammar';
  if (grammar === undefined || typeof grammar === 'string') return textRule('grammar', param, grammar);
  const { type, value } = grammar;
  if (type === 'json' && (isObject(value) || typeof value === 'string')) return schemaRule(`${param}.value`, value);
  if (type === 'regex' && typeof value === 'string') return textRule('regex', `${param}.value`, value);
  throw new ParameterFailure('grammar: a text, or {"type": "json" or "regex", "value": ...}', param);
}

function schemaRule(param: string, value: z.infer<typeof schema> | null | undefined): TextRule[] {
  if (!isGiven(value) || value === '') return [];
  return [{ kind: 'json_schema', param, schema: typeof value === 'string' ? value : JSON.stringify(value) }];
}

function textRule(kind: 'regex' | 'grammar', param: string, value: string | null | undefined): TextRule[] {
  if (!isGiven(value) || value === '') return [];
  return kind === 'regex' ? [{ kind, param, pattern: value }] : [{ kind, param, text: value }];
}

function choiceRule(param: string, value: readonly string[] | null | undefined): TextRule[] {
  return isGiven(value) && value.length > 0 ? [{ kind: 'choice', param, texts: value }] : [];
}

function isGiven<T>(value: T | null | undefined): value is T {
  return value !== null && value !== undefined;
}
