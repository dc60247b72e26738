/** A chat as a template reads it: its messages, its tools and the template's arguments. */

/** A tool, as the client defines it and a chat template reads it. */
export interface ToolDefinition {
  readonly type: 'function';
  /** Text of the parameters, where their values do not tell it. */
  readonly exactParameters?: string;
  readonly function: {
    readonly name: string;
    readonly description?: string;
    readonly parameters?: Readonly<Record<string, unknown>>;
    readonly strict?: boolean;
  };
}

/** Messages and arguments that a chat template is rendered with. */
export interface TemplateInput {
  readonly messages: readonly Record<string, unknown>[];
  readonly addGenerationPrompt: boolean;
  readonly continueFinalMessage: boolean;
  readonly addSpecialTokens: boolean;
  readonly kwargs: Readonly<Record<string, unknown>>;
  readonly tools?: readonly ToolDefinition[];
}
