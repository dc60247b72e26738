/** Parses Jinja's expressions and assignment targets. */
import { isFilter, isTest } from './filters.ts';
import type { Arguments, Arithmetic, Call, Comparison, Expression, Filter, Target } from './syntax.ts';
import { TokenReader } from './token_reader.ts';
import { quoted } from './values.ts';

const COMPARISONS: ReadonlySet<string> = new Set(['==', '!=', '<', '<=', '>', '>=']);
const TUPLE_ENDS: ReadonlySet<string> = new Set(['variable_end', 'block_end', ')']);
/** Token types that can begin a test's argument without brackets, as in `x is divisibleby 3`. */
const ARGUMENT_STARTS: ReadonlySet<string> = new Set(['name', 'string', 'integer', 'float', '(', '[', '{']);
const NO_ARGUMENTS: Arguments = { positional: [], named: [], list: undefined, dict: undefined };

/** A filter or test with an unknown name. Parsing fails, unless the use lies in a conditional branch: then only evaluation fails. */
interface Unknown {
  readonly message: string;
  isCertain: boolean;
}

/** Parser of Jinja's expressions and assignment targets. The parser of statements extends this class. */
export class ExpressionParser extends TokenReader {
  protected unknowns: Unknown[] = [];
  /** Names that are read in the body of each open macro. */
  protected readonly reads: Set<string>[] = [];

  // Targets

  /**
   * Parses an assignment target, or several with commas between, up to the name `end`. `hasFields` allows fields of a namespace.
   * @throws PythonError `TemplateSyntaxError`
   */
  protected target(end?: string, hasFields = false): Target {
    const items: Target[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.expect(',');
      if (TUPLE_ENDS.has(this.token.type) || (end !== undefined && this.isName(end))) break;
      items.push(this.#singleTarget(hasFields));
      if (!this.is(',')) break;
      isTuple = true;
    }
    const [only] = items;
    if (isTuple) return { kind: 'tuple', items };
    return only ?? this.fail(`Expected an expression, got '${this.described()}'`);
  }

  #singleTarget(hasFields: boolean): Target {
    const { type, value } = this.token;
    if (type === '(') {
      this.at++;
      const inner = this.target();
      this.expect(')');
      return inner;
    }
    if (type !== 'name' || ['true', 'false', 'True', 'False', 'none', 'None'].includes(value)) {
      const { kind } = this.#primary();
      this.fail(`can't assign to '${kind === 'constant' ? 'const' : kind}'`);
    }
    this.at++;
    if (hasFields && this.skip('.')) return { kind: 'field', namespace: value, name: this.expect('name').value };
    return { kind: 'name', name: value };
  }

  // Expressions

  protected expression(hasConditions = true): Expression {
    return hasConditions ? this.#condition() : this.#or();
  }

  /** Parses one expression, or a tuple of several with commas between. */
  protected tuple({
    hasConditions = true,
    end,
    isInBrackets = false,
  }: { hasConditions?: boolean; end?: string; isInBrackets?: boolean } = {}): Expression {
    const items: Expression[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.expect(',');
      if (TUPLE_ENDS.has(this.token.type) || (end !== undefined && this.isName(end))) break;
      items.push(this.expression(hasConditions));
      if (!this.is(',')) break;
      isTuple = true;
    }
    const [only] = items;
    if (!isTuple && only) return only;
    if (!isTuple && !isInBrackets) this.fail(`Expected an expression, got '${this.described()}'`);
    return { kind: 'tuple', items };
  }

  #condition(): Expression {
    const known = this.unknowns.length;
    let { line } = this.token;
    let then = this.#or();
    while (this.skipName('if')) {
      const test = this.#or();
      const otherwise = this.skipName('else') ? this.#condition() : undefined;
      then = { kind: 'condition', test, then, otherwise, line };
      this.forgive(known);
      ({ line } = this.token);
    }
    return then;
  }

  #or(): Expression {
    let left = this.#and();
    while (this.skipName('or')) left = { kind: 'or', left, right: this.#and() };
    return left;
  }

  #and(): Expression {
    let left = this.#not();
    while (this.skipName('and')) left = { kind: 'and', left, right: this.#not() };
    return left;
  }

  #not(): Expression {
    if (this.skipName('not')) return { kind: 'unary', operator: 'not', operand: this.#not() };
    return this.#compare();
  }

  #compare(): Expression {
    const first = this.#sum();
    const others: [Comparison, Expression][] = [];
    for (let operator = this.#comparison(); operator; operator = this.#comparison()) {
      others.push([operator, this.#sum()]);
    }
    return others.length === 0 ? first : { kind: 'compare', first, others };
  }

  #comparison(): Comparison | undefined {
    if (COMPARISONS.has(this.token.type)) return this.next().type as Comparison;
    if (this.skipName('in')) return 'in';
    const ahead = this.look(1);
    if (!this.isName('not') || ahead?.type !== 'name' || ahead.value !== 'in') return undefined;
    this.at += 2;
    return 'not in';
  }

  #sum(): Expression {
    return this.#arithmetic(['+', '-'], () => this.#concat());
  }

  #concat(): Expression {
    const items = [this.#product()];
    while (this.skip('~')) items.push(this.#product());
    const [only] = items;
    return items.length === 1 && only ? only : { kind: 'concat', items };
  }

  #product(): Expression {
    return this.#arithmetic(['*', '/', '//', '%'], () => this.#arithmetic(['**'], () => this.#unary()));
  }

  #arithmetic(operators: readonly Arithmetic[], operand: () => Expression): Expression {
    let left = operand();
    for (;;) {
      const operator = operators.find((type) => this.is(type));
      if (!operator) return left;
      this.at++;
      left = { kind: 'arithmetic', operator, left, right: operand() };
    }
  }

  #unary(hasFilters = true): Expression {
    const { type } = this.token;
    let value: Expression;
    if (type === '-' || type === '+') {
      this.at++;
      value = { kind: 'unary', operator: type, operand: this.#unary(false) };
    } else value = this.#primary();
    value = this.#postfix(value);
    return hasFilters ? this.#filtersAndTests(value) : value;
  }

  #primary(): Expression {
    const { type, value } = this.token;
    this.at++;
    switch (type) {
      case 'name':
        return this.#named(value);
      case 'string': {
        let text = value;
        while (this.is('string')) text += this.next().value;
        return { kind: 'constant', value: text };
      }
      case 'integer':
        return { kind: 'constant', value: BigInt(value.toLowerCase()) };
      case 'float':
        return { kind: 'constant', value: Number(value) };
      case '(': {
        const inner = this.tuple({ isInBrackets: true });
        this.expect(')');
        return inner;
      }
      case '[':
        return { kind: 'list', items: this.#listed(']', () => this.expression()) };
      case '{':
        return { kind: 'dict', pairs: this.#listed('}', () => this.#pair()) };
      default:
        this.at--;
        return this.fail(`unexpected '${this.described()}'`);
    }
  }

  #named(name: string): Expression {
    if (name === 'true' || name === 'True') return { kind: 'constant', value: true };
    if (name === 'false' || name === 'False') return { kind: 'constant', value: false };
    if (name === 'none' || name === 'None') return { kind: 'constant', value: null };
    for (const reads of this.reads) reads.add(name);
    return { kind: 'name', name };
  }

  #listed<T>(end: string, item: () => T): T[] {
    const items: T[] = [];
    while (!this.is(end)) {
      if (items.length > 0) this.expect(',');
      if (this.is(end)) break;
      items.push(item());
    }
    this.expect(end);
    return items;
  }

  #pair(): [Expression, Expression] {
    const key = this.expression();
    this.expect(':');
    return [key, this.expression()];
  }

  #postfix(of: Expression): Expression {
    let value = of;
    for (;;) {
      if (this.is('.') || this.is('[')) value = this.#subscript(value);
      else if (this.is('(')) value = this.#call(value);
      else return value;
    }
  }

  #subscript(object: Expression): Expression {
    if (this.next().type === '.') {
      const { type, value } = this.next();
      if (type === 'name') return { kind: 'attribute', object, name: value };
      if (type !== 'integer') this.fail('expected name or number');
      return { kind: 'item', object, key: { kind: 'constant', value: BigInt(value) } };
    }
    const keys: Expression[] = [];
    while (!this.is(']')) {
      if (keys.length > 0) this.expect(',');
      keys.push(this.#subscribed());
    }
    this.at++;
    const [only] = keys;
    return { kind: 'item', object, key: keys.length === 1 && only ? only : { kind: 'tuple', items: keys } };
  }

  #subscribed(): Expression {
    const start = this.is(':') ? undefined : this.expression();
    if (start && !this.is(':')) return start;
    this.at++;
    const stop = this.#bound();
    return { kind: 'slice', start, stop, step: this.skip(':') ? this.#bound() : undefined };
  }

  #bound(): Expression | undefined {
    return this.is(':') || this.is(']') || this.is(',') ? undefined : this.expression();
  }

  #call(callee: Expression): Call {
    return { kind: 'call', callee, given: this.#arguments() };
  }

  #arguments(): Arguments {
    const positional: Expression[] = [];
    const named: [string, Expression][] = [];
    let list: Expression | undefined;
    let dict: Expression | undefined;
    const ensure = (isValid: boolean): void => {
      if (!isValid) this.fail('invalid syntax for function call expression');
    };
    this.expect('(');
    for (let isFirst = true; !this.is(')'); isFirst = false) {
      if (!isFirst) this.expect(',');
      if (!isFirst && this.is(')')) break;
      if (this.skip('*')) {
        ensure(!list && !dict);
        list = this.expression();
      } else if (this.skip('**')) {
        ensure(!dict);
        dict = this.expression();
      } else if (this.is('name') && this.look(1)?.type === '=') {
        ensure(!dict);
        const { value: name } = this.next();
        this.at++;
        named.push([name, this.expression()]);
      } else {
        ensure(!list && !dict && named.length === 0);
        positional.push(this.expression());
      }
    }
    this.at++;
    return { positional, named, list, dict };
  }

  #filtersAndTests(of: Expression): Expression {
    let value = of;
    for (;;) {
      if (this.is('|')) value = this.filters(value) ?? value;
      else if (this.isName('is')) value = this.#test(value);
      else if (this.is('(')) value = this.#call(value);
      else return value;
    }
  }

  protected filters(of: Expression | undefined): Expression | undefined {
    let value = of;
    while (this.skip('|')) value = this.filter(value);
    return value;
  }

  protected filter(object: Expression | undefined): Filter {
    const name = this.#dotted();
    if (!isFilter(name)) this.unknowns.push({ message: `No filter named ${quoted(name)}.`, isCertain: false });
    return { kind: 'filter', object, name, given: this.is('(') ? this.#arguments() : NO_ARGUMENTS };
  }

  #dotted(): string {
    let { value: name } = this.expect('name');
    while (this.skip('.')) name += `.${this.expect('name').value}`;
    return name;
  }

  #test(object: Expression): Expression {
    this.at++;
    const isNegated = this.skipName('not');
    const name = this.#dotted();
    if (!isTest(name)) this.unknowns.push({ message: `No test named ${quoted(name)}.`, isCertain: false });
    const test: Expression = { kind: 'test', object, name, given: this.#testArguments() };
    return isNegated ? { kind: 'unary', operator: 'not', operand: test } : test;
  }

  #testArguments(): Arguments {
    if (this.is('(')) return this.#arguments();
    if (!ARGUMENT_STARTS.has(this.token.type) || this.isName('else', 'or', 'and')) return NO_ARGUMENTS;
    if (this.isName('is')) this.fail('You cannot chain multiple tests with is');
    return { ...NO_ARGUMENTS, positional: [this.#postfix(this.#primary())] };
  }

  // Unknown names of filters and tests

  /**
   * Marks the unknown names from index `from` on as errors. They stand in a body that Jinja compiles apart, so a condition around that
   * body does not excuse them.
   */
  protected ascertain(from: number): void {
    for (const unknown of this.unknowns.slice(from)) unknown.isCertain = true;
  }

  /**
   * Drops the unknown names from index `from` on that are not certain: they stand in a conditional branch, which may never be
   * evaluated.
   */
  protected forgive(from: number): void {
    this.unknowns = this.unknowns.filter((unknown, i) => i < from || unknown.isCertain);
  }
}
