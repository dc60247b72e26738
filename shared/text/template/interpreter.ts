/** Renders the syntax tree of a template, with the behaviour of the Python code into which Jinja compiles it. */
import { callValue, getAttribute, getItem } from './attributes.ts';
import { applyFilter, applyTest } from './filters.ts';
import { Namespace } from './globals.ts';
import { LoopContext } from './loop.ts';
import { arithmetic, compare, negative, positive, sliced } from './operators.ts';
import { indexOf } from './strings.ts';
import { str } from './text.ts';
import type { Arguments, Expression, Filter, Loop, MacroBody, Statement, Target } from './syntax.ts';
import {
  Range,
  Callable,
  Dict,
  Given,
  PythonError,
  Stream,
  Tuple,
  Undefined,
  isTrue,
  itemsOf,
  iterate,
  listOf,
  missing,
  quoted,
  stringOf,
  typeError,
  typeName,
  valueError,
  type Value,
} from './values.ts';
import { spend, spendOn } from './steps.ts';

/** Variables by name. A name that this scope does not have is looked up in the scope around it. */
class VariableScope {
  readonly #values = new Map<string, Value>();
  readonly #around: VariableScope | undefined;

  constructor(around?: VariableScope) {
    this.#around = around;
  }

  get(name: string): Value | undefined {
    const value = this.#values.get(name);
    return value === undefined ? this.#around?.get(name) : value;
  }

  set(name: string, value: Value): void {
    this.#values.set(name, value);
  }
}

/** How a body was left early; undefined when it ran to its end. */
type Leaving = 'break' | 'continue' | undefined;

class Macro extends Callable {
  override readonly type = 'Macro';
  override readonly module = 'jinja2.runtime';
  readonly #parameters: readonly string[];

  constructor(name: string, parameters: readonly string[], call: (given: Given) => Value) {
    super(name, call);
    this.#parameters = parameters;
  }

  override shown(): string {
    return `<Macro ${quoted(this.name)}>`;
  }

  override attribute(name: string): Value | undefined {
    if (name === 'name') return this.name;
    return name === 'arguments' ? new Tuple(this.#parameters) : undefined;
  }
}

/** Renders a template's statements to text. @throws PythonError where Jinja or Python would raise */
export function render(
  body: readonly Statement[],
  globals: ReadonlyMap<string, Value>,
  context: Iterable<readonly [name: string, value: Value]>,
): string {
  const scope = new VariableScope();
  for (const [name, value] of globals) scope.set(name, value);
  for (const [name, value] of context) scope.set(name, value);
  return new Interpreter(scope).text(body, new VariableScope(scope));
}

class Interpreter {
  /** The template's outermost scope, which a `block` without `scoped` sees instead of the scope around it. */
  #root: VariableScope;

  constructor(root: VariableScope) {
    this.#root = root;
  }

  /**
   * Renders the whole template.
   * @param scope the outermost scope, whose variables blocks can read
   */
  text(body: readonly Statement[], scope: VariableScope): string {
    this.#root = scope;
    return this.#captured(body, scope);
  }

  #captured(body: readonly Statement[], scope: VariableScope): string {
    const out: string[] = [];
    this.#run(body, scope, out);
    return out.join('');
  }

  // Statements

  #run(body: readonly Statement[], scope: VariableScope, out: string[]): Leaving {
    for (const statement of body) {
      const leaving = this.#execute(statement, scope, out);
      if (leaving) return leaving;
    }
    return undefined;
  }

  #execute(statement: Statement, scope: VariableScope, out: string[]): Leaving {
    spend(1);
    switch (statement.kind) {
      case 'text':
        out.push(statement.text);
        return undefined;
      case 'print': {
        const text = str(this.#evaluate(statement.value, scope));
        spendOn(text);
        out.push(text);
        return undefined;
      }
      case 'if': {
        const branch = statement.branches.find(({ test }) => isTrue(this.#evaluate(test, scope)));
        return this.#run(branch?.body ?? statement.otherwise, scope, out);
      }
      case 'for':
        return this.#for(statement, this.#evaluate(statement.over, scope), scope, out);
      case 'set':
        this.#assign(statement.target, this.#evaluate(statement.value, scope), scope);
        return undefined;
      case 'capture':
        return this.#capture(statement, scope);
      case 'macro':
        scope.set(statement.name, this.#macro(statement.name, statement.macro, scope));
        return undefined;
      case 'callBlock': {
        const caller = this.#macro('caller', statement.macro, scope);
        const callee = this.#evaluate(statement.call.callee, scope);
        out.push(written(callValue(callee, this.#given(statement.call.given, scope, ['caller', caller]))));
        return undefined;
      }
      case 'filterBlock':
        return this.#filterBlock(statement, scope, out);
      case 'with': {
        const inner = new VariableScope(scope);
        for (const [target, value] of statement.values) this.#assign(target, this.#evaluate(value, scope), inner);
        return this.#run(statement.body, inner, out);
      }
      case 'block':
        this.#run(statement.body, new VariableScope(statement.isScoped ? scope : this.#root), out);
        return undefined;
      case 'break':
      case 'continue':
        return statement.kind;
      case 'load':
        throw typeError('no loader for this environment specified');
    }
  }

  /** Captures the output of a body in a variable. A body that is left early assigns nothing. */
  #capture(statement: Extract<Statement, { kind: 'capture' }>, scope: VariableScope): Leaving {
    const out: string[] = [];
    const leaving = this.#run(statement.body, new VariableScope(scope), out);
    if (leaving) return leaving;
    const text = out.join('');
    this.#assign(statement.target, statement.filter ? this.#filter(statement.filter, scope, text) : text, scope);
    return undefined;
  }

  #filterBlock(
    { body, filter }: Extract<Statement, { kind: 'filterBlock' }>,
    scope: VariableScope,
    out: string[],
  ): Leaving {
    const inner: string[] = [];
    const leaving = this.#run(body, new VariableScope(scope), inner);
    if (!leaving) out.push(written(this.#filter(filter, scope, inner.join(''))));
    return leaving;
  }

  #for(loop: Loop, over: Value, scope: VariableScope, out: string[], depth0 = 0): Leaving {
    const recurse = (items: Value): Value => {
      const inner: string[] = [];
      this.#for(loop, items, scope, inner, depth0 + 1);
      return inner.join('');
    };
    const { test } = loop;
    const items = test ? this.#passing(loop.target, test, iterate(over), scope) : iterate(over);
    const context = new LoopContext(test ? null : over, items, depth0, loop.isRecursive ? recurse : undefined);
    let hasTurns = false;
    while (context.advance()) {
      spend(1);
      const inner = new VariableScope(scope);
      inner.set('loop', context);
      this.#assign(loop.target, context.item, inner);
      const leaving = this.#run(loop.body, inner, out);
      if (leaving === 'break') break;
      hasTurns ||= leaving === undefined;
    }
    // An iteration that was left early does not count in Jinja: when all were, the `else` body runs.
    return hasTurns ? undefined : this.#run(loop.otherwise, new VariableScope(scope), out);
  }

  *#passing(target: Target, test: Expression, items: Iterable<Value>, scope: VariableScope): Generator<Value> {
    for (const item of items) {
      spend(1);
      const inner = new VariableScope(scope);
      this.#assign(target, item, inner);
      if (isTrue(this.#evaluate(test, inner))) yield item;
    }
  }

  #assign(target: Target, value: Value, scope: VariableScope): void {
    if (target.kind === 'name') scope.set(target.name, value);
    else if (target.kind === 'tuple') this.#unpack(target.items, value, scope);
    else {
      const namespace = this.#name(target.namespace, scope);
      if (!(namespace instanceof Namespace)) {
        throw new PythonError('TemplateRuntimeError', 'cannot assign attribute on non-namespace object');
      }
      namespace.set(target.name, value);
    }
  }

  #unpack(targets: readonly Target[], value: Value, scope: VariableScope): void {
    if (!(value instanceof Stream) && !itemsOf(value)) {
      throw typeError(`cannot unpack non-iterable ${typeName(value)} object`);
    }
    const items = listOf(value);
    if (items.length > targets.length) throw valueError(`too many values to unpack (expected ${targets.length})`);
    if (items.length < targets.length) {
      throw valueError(`not enough values to unpack (expected ${targets.length}, got ${items.length})`);
    }
    for (const [i, target] of targets.entries()) this.#assign(target, items[i] ?? null, scope);
  }

  // Macros

  #macro(name: string, macro: MacroBody, scope: VariableScope): Macro {
    const parameters = macro.parameters.map((parameter) => parameter.name);
    return new Macro(name, parameters, (given) => this.#callMacro(name, macro, given, scope));
  }

  #callMacro(name: string, macro: MacroBody, { positional, named }: Given, scope: VariableScope): Value {
    const inner = new VariableScope(scope);
    const others = new Map(named);
    for (const [i, parameter] of macro.parameters.entries()) {
      const isPlaced = i < positional.length;
      const value = isPlaced ? (positional[i] ?? null) : others.get(parameter.name);
      if (!isPlaced) others.delete(parameter.name);
      inner.set(parameter.name, value === undefined ? this.#initial(parameter, inner) : value);
    }
    const { special } = macro;
    if (special.has('caller') && !macro.parameters.some((parameter) => parameter.name === 'caller')) {
      inner.set('caller', others.get('caller') ?? new Undefined(() => 'No caller defined'));
      others.delete('caller');
    }
    const [extra] = others.keys();
    if (special.has('kwargs')) inner.set('kwargs', new Dict(others));
    else if (extra !== undefined) throw typeError(`macro ${quoted(name)} takes no keyword argument ${quoted(extra)}`);
    const count = macro.parameters.length;
    if (special.has('varargs')) inner.set('varargs', new Tuple(positional.slice(count)));
    else if (positional.length > count) {
      throw typeError(`macro ${quoted(name)} takes not more than ${count} argument(s)`);
    }
    return this.#captured(macro.body, inner);
  }

  #initial({ name, initial }: MacroBody['parameters'][number], scope: VariableScope): Value {
    if (initial) return this.#evaluate(initial, scope);
    return new Undefined(() => `parameter ${quoted(name)} was not provided`);
  }

  // Expressions

  #evaluate(expression: Expression, scope: VariableScope): Value {
    spend(1);
    switch (expression.kind) {
      case 'constant':
        return expression.value;
      case 'name':
        return this.#name(expression.name, scope);
      case 'list':
        return this.#all(expression.items, scope);
      case 'tuple':
        return new Tuple(this.#all(expression.items, scope));
      case 'concat': {
        const text = this.#all(expression.items, scope).map(str).join('');
        spendOn(text);
        return text;
      }
      case 'dict':
        return new Dict(
          expression.pairs.map(([key, value]) => [this.#evaluate(key, scope), this.#evaluate(value, scope)] as const),
        );
      case 'attribute': {
        const object = this.#evaluate(expression.object, scope);
        // The attributes of a text are methods, which read it.
        if (stringOf(object) !== undefined) spendOn(object);
        return getAttribute(object, expression.name);
      }
      case 'item':
        return this.#item(expression, scope);
      case 'slice':
        throw new PythonError('TypeError', 'a slice is no value');
      case 'call': {
        const callee = this.#evaluate(expression.callee, scope);
        const result = callValue(callee, this.#given(expression.given, scope));
        spendOn(result);
        return result;
      }
      case 'filter':
        return this.#filter(expression, scope, '');
      case 'test': {
        const value = this.#evaluate(expression.object, scope);
        return applyTest(expression.name, value, this.#given(expression.given, scope));
      }
      case 'unary': {
        const operand = this.#evaluate(expression.operand, scope);
        if (expression.operator === 'not') return !isTrue(operand);
        return expression.operator === '-' ? negative(operand) : positive(operand);
      }
      case 'arithmetic': {
        const left = this.#evaluate(expression.left, scope);
        const result = arithmetic(expression.operator, left, this.#evaluate(expression.right, scope));
        // Texts are joined without a copy; other results are made anew.
        if (typeof result !== 'string' || expression.operator !== '+') spendOn(result);
        return result;
      }
      case 'and':
      case 'or': {
        const left = this.#evaluate(expression.left, scope);
        return isTrue(left) === (expression.kind === 'or') ? left : this.#evaluate(expression.right, scope);
      }
      case 'compare':
        return this.#compare(expression, scope);
      case 'condition':
        return this.#condition(expression, scope);
    }
  }

  #all(items: readonly Expression[], scope: VariableScope): Value[] {
    return items.map((item) => this.#evaluate(item, scope));
  }

  #name(name: string, scope: VariableScope): Value {
    const value = scope.get(name);
    return value === undefined ? new Undefined(() => `${quoted(name)} is undefined`) : value;
  }

  #item({ object, key }: Extract<Expression, { kind: 'item' }>, scope: VariableScope): Value {
    const value = this.#evaluate(object, scope);
    if (key.kind === 'tuple' && key.items.some((item) => item.kind === 'slice')) return missing(value, new Tuple([]));
    if (key.kind !== 'slice') {
      // A character is found by going through the text.
      if (stringOf(value) !== undefined || value instanceof Range) spendOn(value);
      return getItem(value, this.#evaluate(key, scope));
    }
    if (value instanceof Undefined) value.fail();
    const [start, stop, step] = [key.start, key.stop, key.step].map((part) => this.#bound(part, scope));
    spendOn(value);
    const part = sliced(value, start, stop, step);
    if (part !== undefined) return part;
    if (value instanceof Dict) throw typeError("unhashable type: 'slice'");
    throw typeError(`'${typeName(value)}' object is not subscriptable`);
  }

  #bound(part: Expression | undefined, scope: VariableScope): bigint | undefined {
    const value = part ? this.#evaluate(part, scope) : null;
    if (value === null) return undefined;
    if (typeof value !== 'bigint' && typeof value !== 'boolean') {
      throw typeError('slice indices must be integers or None or have an __index__ method');
    }
    return BigInt(indexOf(value) ?? 0);
  }

  #compare({ first, others }: Extract<Expression, { kind: 'compare' }>, scope: VariableScope): boolean {
    let left = this.#evaluate(first, scope);
    for (const [operator, operand] of others) {
      const right = this.#evaluate(operand, scope);
      spendOn(right);
      if (!compare(operator, left, right)) return false;
      left = right;
    }
    return true;
  }

  #condition({ test, then, otherwise, line }: Extract<Expression, { kind: 'condition' }>, scope: VariableScope): Value {
    if (isTrue(this.#evaluate(test, scope))) return this.#evaluate(then, scope);
    if (otherwise) return this.#evaluate(otherwise, scope);
    const message = `the inline if-expression on line ${line} evaluated to false and no else section was defined.`;
    return new Undefined(() => message);
  }

  /**
   * Applies a filter, after the filters inside it.
   * @param text the input of a filter without an object, as in a filter block
   */
  #filter(filter: Filter, scope: VariableScope, text: string): Value {
    const { object } = filter;
    const isInner = object === undefined || object.kind === 'filter';
    const value = isInner ? (object ? this.#filter(object, scope, text) : text) : this.#evaluate(object, scope);
    const given = this.#given(filter.given, scope);
    spendOn(value);
    const result = applyFilter(filter.name, value, given);
    spendOn(result);
    return result;
  }

  #given({ positional, named, list, dict }: Arguments, scope: VariableScope, more?: readonly [string, Value]): Given {
    const values = this.#all(positional, scope);
    const names = new Map<string, Value>();
    for (const [name, value] of named) this.#addNamed(names, name, this.#evaluate(value, scope));
    if (list) values.push(...iterate(this.#evaluate(list, scope)));
    if (dict) {
      const given = this.#evaluate(dict, scope);
      if (!(given instanceof Dict)) throw typeError(`argument after ** must be a mapping, not ${typeName(given)}`);
      for (const [name, value] of given.entries()) this.#addNamed(names, str(name), value);
    }
    if (more) this.#addNamed(names, ...more);
    return new Given(values, names);
  }

  #addNamed(names: Map<string, Value>, name: string, value: Value): void {
    if (names.has(name)) throw typeError(`got multiple values for keyword argument ${quoted(name)}`);
    names.set(name, value);
  }
}

/**
 * Returns the text that a `call` or `filter` block writes. Jinja does not convert the value. @throws PythonError `TypeError` for a
 * value that is no string
 */
function written(value: Value): string {
  const text = stringOf(value);
  if (text === undefined) throw typeError(`sequence item 0: expected str instance, ${typeName(value)} found`);
  return text;
}
