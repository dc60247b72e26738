/** Syntax tree of a template: expressions, assignment targets and statements. */

/** The arguments of a call. */
export interface Arguments {
  readonly positional: readonly Expression[];
  readonly named: readonly (readonly [name: string, value: Expression])[];
  /** Values of the arguments `*list` and `**dict`. */
  readonly list: Expression | undefined;
  readonly dict: Expression | undefined;
}

/** An arithmetic operator. */
export type Arithmetic = '+' | '-' | '*' | '/' | '//' | '%' | '**';
/** A comparison operator, membership included. */
export type Comparison = '==' | '!=' | '<' | '<=' | '>' | '>=' | 'in' | 'not in';

/** An expression of the template language. `kind` selects the fields. */
export type Expression =
  | { readonly kind: 'constant'; readonly value: null | boolean | bigint | number | string }
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'list' | 'tuple' | 'concat'; readonly items: readonly Expression[] }
  | { readonly kind: 'dict'; readonly pairs: readonly (readonly [key: Expression, value: Expression])[] }
  | { readonly kind: 'attribute'; readonly object: Expression; readonly name: string }
  | { readonly kind: 'item'; readonly object: Expression; readonly key: Expression }
  | {
      readonly kind: 'slice';
      readonly start: Expression | undefined;
      readonly stop: Expression | undefined;
      readonly step: Expression | undefined;
    }
  | Call
  | Filter
  | { readonly kind: 'test'; readonly object: Expression; readonly name: string; readonly given: Arguments }
  | { readonly kind: 'unary'; readonly operator: '-' | '+' | 'not'; readonly operand: Expression }
  | {
      readonly kind: 'arithmetic';
      readonly operator: Arithmetic;
      readonly left: Expression;
      readonly right: Expression;
    }
  | { readonly kind: 'and' | 'or'; readonly left: Expression; readonly right: Expression }
  | {
      readonly kind: 'compare';
      readonly first: Expression;
      readonly others: readonly (readonly [operator: Comparison, operand: Expression])[];
    }
  | {
      readonly kind: 'condition';
      readonly test: Expression;
      readonly then: Expression;
      readonly otherwise: Expression | undefined;
      readonly line: number;
    };

/** A call of an expression with arguments. */
export interface Call {
  readonly kind: 'call';
  readonly callee: Expression;
  readonly given: Arguments;
}

/** A filter applied to an expression, or to the text of a block. */
export interface Filter {
  readonly kind: 'filter';
  /** The filtered expression; undefined when the filter applies to the text of a block. */
  readonly object: Expression | undefined;
  readonly name: string;
  readonly given: Arguments;
}

/** An assignment target: a name, a field of a namespace, or a tuple of targets. */
export type Target =
  | { readonly kind: 'name'; readonly name: string }
  | { readonly kind: 'field'; readonly namespace: string; readonly name: string }
  | { readonly kind: 'tuple'; readonly items: readonly Target[] };

/** A parameter of a macro. `initial` is the default value; undefined when the parameter has none. */
export interface Parameter {
  readonly name: string;
  readonly initial: Expression | undefined;
}

/** A macro, or the block of a call, which has no name. */
export interface MacroBody {
  readonly parameters: readonly Parameter[];
  readonly body: readonly Statement[];
  /** The names among `caller`, `kwargs` and `varargs` that the body reads. */
  readonly special: ReadonlySet<string>;
}

/** A `for` loop: `over` is iterated, `test` is the condition after `if`, and `otherwise` is the body of `else`. */
export interface Loop {
  readonly kind: 'for';
  readonly target: Target;
  readonly over: Expression;
  readonly test: Expression | undefined;
  readonly isRecursive: boolean;
  readonly body: readonly Statement[];
  readonly otherwise: readonly Statement[];
}

/** A statement of the template language. `kind` selects the fields. */
export type Statement =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'print'; readonly value: Expression }
  | {
      readonly kind: 'if';
      readonly branches: readonly { readonly test: Expression; readonly body: readonly Statement[] }[];
      readonly otherwise: readonly Statement[];
    }
  | Loop
  | { readonly kind: 'set'; readonly target: Target; readonly value: Expression }
  | {
      readonly kind: 'capture';
      readonly target: Target;
      readonly filter: Filter | undefined;
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'macro'; readonly name: string; readonly macro: MacroBody }
  | { readonly kind: 'callBlock'; readonly call: Call; readonly macro: MacroBody }
  | { readonly kind: 'filterBlock'; readonly filter: Filter; readonly body: readonly Statement[] }
  | {
      readonly kind: 'with';
      readonly values: readonly (readonly [target: Target, value: Expression])[];
      readonly body: readonly Statement[];
    }
  | { readonly kind: 'block'; readonly isScoped: boolean; readonly body: readonly Statement[] }
  | { readonly kind: 'break' | 'continue' }
  /** A tag that loads another template, such as `include`. Rendering it fails, because there is no loader. */
  | { readonly kind: 'load' };
