/** Rules that a request may state for the text of its answers. */

/** One rule, with the parameter that states it, for messages. */
export type TextRule = { readonly param: string } & (
  | { readonly kind: 'json_object' }
  /** `schema` is a JSON schema as JSON text. */
  | { readonly kind: 'json_schema'; readonly schema: string }
  /** `pattern` is a regular expression that the whole text matches. */
  | { readonly kind: 'regex'; readonly pattern: string }
  | { readonly kind: 'choice'; readonly texts: readonly string[] }
  /** `text` is a grammar as EBNF or GBNF. */
  | { readonly kind: 'grammar'; readonly text: string }
);
