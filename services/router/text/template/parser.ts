/** A template's source as what it consists of, by Jinja's grammar. */
import { isFilter, isTest } from './filters.ts';
import { tokensOf, type Token } from './lexer.ts';
import { PythonError, quoted } from './values.ts';
import type {
  Arguments,
  Arithmetic,
  Call,
  Comparison,
  Expression,
  Filter,
  MacroBody,
  Parameter,
  Statement,
  Target,
} from './syntax.ts';

const COMPARISONS: ReadonlySet<string> = new Set(['==', '!=', '<', '<=', '>', '>=']);
const TUPLE_ENDS: ReadonlySet<string> = new Set(['variable_end', 'block_end', ')']);
/** What an argument of a test can begin with, where no bracket is around it. */
const ARGUMENT_STARTS: ReadonlySet<string> = new Set(['name', 'string', 'integer', 'float', '(', '[', '{']);
const SPECIAL: readonly string[] = ['caller', 'kwargs', 'varargs'];
const NO_ARGUMENTS: Arguments = { positional: [], named: [], list: undefined, dict: undefined };

const DESCRIPTIONS: Readonly<Record<string, string>> = {
  block_begin: 'begin of statement block',
  block_end: 'end of statement block',
  variable_begin: 'begin of print statement',
  variable_end: 'end of print statement',
  data: 'template data / text',
  eof: 'end of template',
};

/** What is not known by its name. It matters only where it is used, if that is within a branch. */
interface Unknown {
  readonly message: string;
  isCertain: boolean;
}

/** @throws PythonError for what is no template */
export function parse(source: string): Statement[] {
  return new Parser(tokensOf(source)).parse();
}

class Parser {
  readonly #tokens: readonly Token[];
  #at = 0;
  /** The tags that are open, and what may end them. */
  readonly #tags: string[] = [];
  readonly #ends: (readonly string[])[] = [];
  /** The loops around that `break` can leave. */
  #loops = 0;
  #unknowns: Unknown[] = [];
  /** The names that are read, of each macro that is open. */
  readonly #reads: Set<string>[] = [];

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens;
  }

  parse(): Statement[] {
    const body = this.#statements();
    const [unknown] = this.#unknowns;
    if (unknown) throw new PythonError('TemplateAssertionError', unknown.message);
    return body;
  }

  // Tokens

  get #token(): Token {
    return this.#tokens[this.#at] ?? { type: 'eof', value: '', line: 0 };
  }

  #look(ahead: number): Token | undefined {
    return this.#tokens[this.#at + ahead];
  }

  #next(): Token {
    const token = this.#token;
    this.#at++;
    return token;
  }

  #is(type: string): boolean {
    return this.#token.type === type;
  }

  #isName(...names: readonly string[]): boolean {
    return this.#token.type === 'name' && names.includes(this.#token.value);
  }

  #skip(type: string): boolean {
    if (!this.#is(type)) return false;
    this.#at++;
    return true;
  }

  #skipName(name: string): boolean {
    if (!this.#isName(name)) return false;
    this.#at++;
    return true;
  }

  #expect(type: string): Token {
    if (this.#is(type)) return this.#next();
    const expected = DESCRIPTIONS[type] ?? type;
    if (this.#is('eof')) this.#fail(`unexpected end of template, expected '${expected}'.`);
    return this.#fail(`expected token '${expected}', got '${this.#described()}'`);
  }

  #expectName(name: string): void {
    if (this.#skipName(name)) return;
    if (this.#is('eof')) this.#fail(`unexpected end of template, expected '${name}'.`);
    this.#fail(`expected token '${name}', got '${this.#described()}'`);
  }

  #described(): string {
    const { type, value } = this.#token;
    return type === 'name' ? value : (DESCRIPTIONS[type] ?? type);
  }

  #fail(message: string): never {
    throw new PythonError('TemplateSyntaxError', message);
  }

  // Statements

  /** Up to one of the tags that end it, which is left, or the end of the template. */
  #statements(ends?: readonly string[]): Statement[] {
    const body: Statement[] = [];
    if (ends) this.#ends.push(ends);
    for (;;) {
      const token = this.#token;
      if (token.type === 'eof') break;
      this.#at++;
      if (token.type === 'data') body.push({ kind: 'text', text: token.value });
      else if (token.type === 'variable_begin') {
        body.push({ kind: 'print', value: this.#tuple() });
        this.#expect('variable_end');
      } else {
        if (ends && this.#isName(...ends)) break;
        body.push(...this.#statement());
        this.#expect('block_end');
      }
    }
    if (ends) this.#ends.pop();
    return body;
  }

  /** The body of a tag, after which one of its ends has been read. */
  #body(ends: readonly string[]): { body: Statement[]; end: string } {
    this.#skip(':');
    this.#expect('block_end');
    const body = this.#statements(ends);
    if (this.#is('eof')) this.#failTag(undefined, ends);
    return { body, end: this.#next().value };
  }

  #bodyUntil(end: string): Statement[] {
    return this.#body([end]).body;
  }

  #failTag(name: string | undefined, ends: readonly string[] | undefined): never {
    const parts = [name === undefined ? 'Unexpected end of template.' : `Encountered unknown tag ${quoted(name)}.`];
    const looking = ends?.map(quoted).join(' or ');
    const isNested = name !== undefined && this.#ends.some((of) => of.includes(name));
    if (looking !== undefined) {
      parts.push(
        isNested
          ? `You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for ${looking}.`
          : `Jinja was looking for the following tags: ${looking}.`,
      );
    }
    const tag = this.#tags.at(-1);
    if (tag !== undefined) parts.push(`The innermost block that needs to be closed is ${quoted(tag)}.`);
    this.#fail(parts.join(' '));
  }

  #statement(): Statement[] {
    if (!this.#is('name')) this.#fail('tag name expected');
    const { value: tag } = this.#token;
    const parse = this.#tagParser(tag);
    if (!parse) this.#failTag(tag, this.#ends.at(-1));
    this.#at++;
    this.#tags.push(tag);
    const statements = parse();
    this.#tags.pop();
    return Array.isArray(statements) ? statements : [statements];
  }

  #tagParser(tag: string): (() => Statement | Statement[]) | undefined {
    switch (tag) {
      case 'for':
        return () => this.#for();
      case 'if':
        return () => this.#if();
      case 'set':
        return () => this.#set();
      case 'macro':
        return () => this.#macro();
      case 'call':
        return () => this.#callBlock();
      case 'filter':
        return () => this.#filterBlock();
      case 'with':
        return () => this.#with();
      case 'block':
        return () => this.#block();
      case 'print':
        return () => this.#print();
      case 'generation':
        return () => this.#generation();
      case 'break':
      case 'continue':
        return () => this.#leave(tag);
      case 'include':
      case 'import':
      case 'from':
      case 'extends':
        return () => this.#load();
      default:
        return undefined;
    }
  }

  #for(): Statement {
    const target = this.#target('in');
    this.#expectName('in');
    const over = this.#tuple({ hasConditions: false, end: 'recursive' });
    const test = this.#skipName('if') ? this.#expression() : undefined;
    const isRecursive = this.#skipName('recursive');
    const known = this.#unknowns.length;
    this.#loops++;
    const { body, end } = this.#body(['endfor', 'else']);
    this.#loops--;
    const otherwise = end === 'else' ? this.#bodyUntil('endfor') : [];
    this.#ascertain(known);
    return { kind: 'for', target, over, test, isRecursive, body, otherwise };
  }

  #if(): Statement {
    const known = this.#unknowns.length;
    const branches: { test: Expression; body: Statement[] }[] = [];
    let otherwise: Statement[] = [];
    for (let end = 'elif'; end !== 'endif';) {
      if (end === 'else') {
        otherwise = this.#bodyUntil('endif');
        break;
      }
      const test = this.#tuple({ hasConditions: false });
      const parsed = this.#body(['elif', 'else', 'endif']);
      branches.push({ test, body: parsed.body });
      ({ end } = parsed);
    }
    this.#forgive(known);
    return { kind: 'if', branches, otherwise };
  }

  #set(): Statement {
    const target = this.#target(undefined, true);
    if (this.#skip('=')) return { kind: 'set', target, value: this.#tuple() };
    const filter = this.#filters(undefined);
    const known = this.#unknowns.length;
    const body = this.#bodyUntil('endset');
    this.#ascertain(known);
    return { kind: 'capture', target, filter: filter?.kind === 'filter' ? filter : undefined, body };
  }

  #macro(): Statement {
    const { value: name } = this.#expect('name');
    const macro = this.#macroBody(this.#parameters(), 'endmacro');
    return { kind: 'macro', name, macro };
  }

  #callBlock(): Statement {
    const parameters = this.#is('(') ? this.#parameters() : [];
    const call = this.#expression();
    if (call.kind !== 'call') this.#fail('expected call');
    return { kind: 'callBlock', call, macro: this.#macroBody(parameters, 'endcall') };
  }

  /** A function of its own: what loops around it are not to be left from here. */
  #macroBody(parameters: Parameter[], end: string): MacroBody {
    const [loops, known] = [this.#loops, this.#unknowns.length];
    const reads = new Set<string>();
    this.#loops = 0;
    this.#reads.push(reads);
    const body = this.#bodyUntil(end);
    this.#reads.pop();
    this.#loops = loops;
    this.#ascertain(known);
    return { parameters, body, special: new Set(SPECIAL.filter((name) => reads.has(name))) };
  }

  #parameters(): Parameter[] {
    const parameters: Parameter[] = [];
    this.#expect('(');
    while (!this.#is(')')) {
      if (parameters.length > 0) this.#expect(',');
      const { value: name } = this.#expect('name');
      const initial = this.#skip('=') ? this.#expression() : undefined;
      if (!initial && parameters.at(-1)?.initial) this.#fail('non-default argument follows default argument');
      if (parameters.some((parameter) => parameter.name === name)) {
        throw new PythonError('SyntaxError', `duplicate argument ${quoted(name)} in function definition`);
      }
      parameters.push({ name, initial });
    }
    this.#at++;
    return parameters;
  }

  #filterBlock(): Statement {
    const filter = this.#filters(this.#filter(undefined));
    const known = this.#unknowns.length;
    const body = this.#bodyUntil('endfilter');
    this.#ascertain(known);
    if (filter?.kind !== 'filter') this.#fail('expected filter');
    return { kind: 'filterBlock', filter, body };
  }

  #with(): Statement {
    const values: [Target, Expression][] = [];
    while (!this.#is('block_end')) {
      if (values.length > 0) this.#expect(',');
      const target = this.#target();
      this.#expect('=');
      values.push([target, this.#expression()]);
    }
    return { kind: 'with', values, body: this.#bodyUntil('endwith') };
  }

  #block(): Statement {
    const { value: name } = this.#expect('name');
    const isScoped = this.#skipName('scoped');
    const loops = this.#loops;
    this.#loops = 0;
    const body = this.#bodyUntil('endblock');
    this.#loops = loops;
    this.#skipName(name);
    return { kind: 'block', isScoped, body };
  }

  #print(): Statement[] {
    const values: Expression[] = [];
    while (!this.#is('block_end')) {
      if (values.length > 0) this.#expect(',');
      values.push(this.#expression());
    }
    return values.map((value) => ({ kind: 'print', value }));
  }

  /** What Hugging Face marks the assistant's text by. */
  #generation(): Statement {
    const loops = this.#loops;
    this.#loops = 0;
    const body = this.#bodyUntil('endgeneration');
    this.#loops = loops;
    return { kind: 'with', values: [], body };
  }

  #leave(kind: 'break' | 'continue'): Statement {
    if (this.#loops > 0) return { kind };
    throw new PythonError('SyntaxError', kind === 'break' ? "'break' outside loop" : "'continue' not properly in loop");
  }

  #load(): Statement {
    while (!this.#is('block_end') && !this.#is('eof')) this.#at++;
    return { kind: 'load' };
  }

  // Targets

  /** What is assigned to, up to a name that ends it. */
  #target(end?: string, hasFields = false): Target {
    const items: Target[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.#expect(',');
      if (TUPLE_ENDS.has(this.#token.type) || (end !== undefined && this.#isName(end))) break;
      items.push(this.#singleTarget(hasFields));
      if (!this.#is(',')) break;
      isTuple = true;
    }
    const [only] = items;
    if (isTuple) return { kind: 'tuple', items };
    return only ?? this.#fail(`Expected an expression, got '${this.#described()}'`);
  }

  #singleTarget(hasFields: boolean): Target {
    const { type, value } = this.#token;
    if (type === '(') {
      this.#at++;
      const inner = this.#target();
      this.#expect(')');
      return inner;
    }
    if (type !== 'name' || ['true', 'false', 'True', 'False', 'none', 'None'].includes(value)) {
      const { kind } = this.#primary();
      this.#fail(`can't assign to '${kind === 'constant' ? 'const' : kind}'`);
    }
    this.#at++;
    if (hasFields && this.#skip('.')) return { kind: 'field', namespace: value, name: this.#expect('name').value };
    return { kind: 'name', name: value };
  }

  // Expressions

  #expression(hasConditions = true): Expression {
    return hasConditions ? this.#condition() : this.#or();
  }

  /** One expression, or several with commas between. */
  #tuple({
    hasConditions = true,
    end,
    isInBrackets = false,
  }: { hasConditions?: boolean; end?: string; isInBrackets?: boolean } = {}): Expression {
    const items: Expression[] = [];
    let isTuple = false;
    for (;;) {
      if (items.length > 0) this.#expect(',');
      if (TUPLE_ENDS.has(this.#token.type) || (end !== undefined && this.#isName(end))) break;
      items.push(this.#expression(hasConditions));
      if (!this.#is(',')) break;
      isTuple = true;
    }
    const [only] = items;
    if (!isTuple && only) return only;
    if (!isTuple && !isInBrackets) this.#fail(`Expected an expression, got '${this.#described()}'`);
    return { kind: 'tuple', items };
  }

  #condition(): Expression {
    const known = this.#unknowns.length;
    let { line } = this.#token;
    let then = this.#or();
    while (this.#skipName('if')) {
      const test = this.#or();
      const otherwise = this.#skipName('else') ? this.#condition() : undefined;
      then = { kind: 'condition', test, then, otherwise, line };
      this.#forgive(known);
      ({ line } = this.#token);
    }
    return then;
  }

  #or(): Expression {
    let left = this.#and();
    while (this.#skipName('or')) left = { kind: 'or', left, right: this.#and() };
    return left;
  }

  #and(): Expression {
    let left = this.#not();
    while (this.#skipName('and')) left = { kind: 'and', left, right: this.#not() };
    return left;
  }

  #not(): Expression {
    if (this.#skipName('not')) return { kind: 'unary', operator: 'not', operand: this.#not() };
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
    if (COMPARISONS.has(this.#token.type)) return this.#next().type as Comparison;
    if (this.#skipName('in')) return 'in';
    const ahead = this.#look(1);
    if (!this.#isName('not') || ahead?.type !== 'name' || ahead.value !== 'in') return undefined;
    this.#at += 2;
    return 'not in';
  }

  #sum(): Expression {
    return this.#arithmetic(['+', '-'], () => this.#concat());
  }

  #concat(): Expression {
    const items = [this.#product()];
    while (this.#skip('~')) items.push(this.#product());
    const [only] = items;
    return items.length === 1 && only ? only : { kind: 'concat', items };
  }

  #product(): Expression {
    return this.#arithmetic(['*', '/', '//', '%'], () => this.#arithmetic(['**'], () => this.#unary()));
  }

  #arithmetic(operators: readonly Arithmetic[], operand: () => Expression): Expression {
    let left = operand();
    for (;;) {
      const operator = operators.find((type) => this.#is(type));
      if (!operator) return left;
      this.#at++;
      left = { kind: 'arithmetic', operator, left, right: operand() };
    }
  }

  #unary(hasFilters = true): Expression {
    const { type } = this.#token;
    let value: Expression;
    if (type === '-' || type === '+') {
      this.#at++;
      value = { kind: 'unary', operator: type, operand: this.#unary(false) };
    } else value = this.#primary();
    value = this.#postfix(value);
    return hasFilters ? this.#filtersAndTests(value) : value;
  }

  #primary(): Expression {
    const { type, value } = this.#token;
    this.#at++;
    switch (type) {
      case 'name':
        return this.#named(value);
      case 'string': {
        let text = value;
        while (this.#is('string')) text += this.#next().value;
        return { kind: 'constant', value: text };
      }
      case 'integer':
        return { kind: 'constant', value: BigInt(value.toLowerCase()) };
      case 'float':
        return { kind: 'constant', value: Number(value) };
      case '(': {
        const inner = this.#tuple({ isInBrackets: true });
        this.#expect(')');
        return inner;
      }
      case '[':
        return { kind: 'list', items: this.#listed(']', () => this.#expression()) };
      case '{':
        return { kind: 'dict', pairs: this.#listed('}', () => this.#pair()) };
      default:
        this.#at--;
        return this.#fail(`unexpected '${this.#described()}'`);
    }
  }

  #named(name: string): Expression {
    if (name === 'true' || name === 'True') return { kind: 'constant', value: true };
    if (name === 'false' || name === 'False') return { kind: 'constant', value: false };
    if (name === 'none' || name === 'None') return { kind: 'constant', value: null };
    for (const reads of this.#reads) reads.add(name);
    return { kind: 'name', name };
  }

  #listed<T>(end: string, item: () => T): T[] {
    const items: T[] = [];
    while (!this.#is(end)) {
      if (items.length > 0) this.#expect(',');
      if (this.#is(end)) break;
      items.push(item());
    }
    this.#expect(end);
    return items;
  }

  #pair(): [Expression, Expression] {
    const key = this.#expression();
    this.#expect(':');
    return [key, this.#expression()];
  }

  #postfix(of: Expression): Expression {
    let value = of;
    for (;;) {
      if (this.#is('.') || this.#is('[')) value = this.#subscript(value);
      else if (this.#is('(')) value = this.#call(value);
      else return value;
    }
  }

  #subscript(object: Expression): Expression {
    if (this.#next().type === '.') {
      const { type, value } = this.#next();
      if (type === 'name') return { kind: 'attribute', object, name: value };
      if (type !== 'integer') this.#fail('expected name or number');
      return { kind: 'item', object, key: { kind: 'constant', value: BigInt(value) } };
    }
    const keys: Expression[] = [];
    while (!this.#is(']')) {
      if (keys.length > 0) this.#expect(',');
      keys.push(this.#subscribed());
    }
    this.#at++;
    const [only] = keys;
    return { kind: 'item', object, key: keys.length === 1 && only ? only : { kind: 'tuple', items: keys } };
  }

  #subscribed(): Expression {
    const start = this.#is(':') ? undefined : this.#expression();
    if (start && !this.#is(':')) return start;
    this.#at++;
    const stop = this.#bound();
    return { kind: 'slice', start, stop, step: this.#skip(':') ? this.#bound() : undefined };
  }

  #bound(): Expression | undefined {
    return this.#is(':') || this.#is(']') || this.#is(',') ? undefined : this.#expression();
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
      if (!isValid) this.#fail('invalid syntax for function call expression');
    };
    this.#expect('(');
    for (let isFirst = true; !this.#is(')'); isFirst = false) {
      if (!isFirst) this.#expect(',');
      if (!isFirst && this.#is(')')) break;
      if (this.#skip('*')) {
        ensure(!list && !dict);
        list = this.#expression();
      } else if (this.#skip('**')) {
        ensure(!dict);
        dict = this.#expression();
      } else if (this.#is('name') && this.#look(1)?.type === '=') {
        ensure(!dict);
        const { value: name } = this.#next();
        this.#at++;
        named.push([name, this.#expression()]);
      } else {
        ensure(!list && !dict && named.length === 0);
        positional.push(this.#expression());
      }
    }
    this.#at++;
    return { positional, named, list, dict };
  }

  #filtersAndTests(of: Expression): Expression {
    let value = of;
    for (;;) {
      if (this.#is('|')) value = this.#filters(value) ?? value;
      else if (this.#isName('is')) value = this.#test(value);
      else if (this.#is('(')) value = this.#call(value);
      else return value;
    }
  }

  #filters(of: Expression | undefined): Expression | undefined {
    let value = of;
    while (this.#skip('|')) value = this.#filter(value);
    return value;
  }

  #filter(object: Expression | undefined): Filter {
    const name = this.#dotted();
    if (!isFilter(name)) this.#unknowns.push({ message: `No filter named ${quoted(name)}.`, isCertain: false });
    return { kind: 'filter', object, name, given: this.#is('(') ? this.#arguments() : NO_ARGUMENTS };
  }

  #dotted(): string {
    let { value: name } = this.#expect('name');
    while (this.#skip('.')) name += `.${this.#expect('name').value}`;
    return name;
  }

  #test(object: Expression): Expression {
    this.#at++;
    const isNegated = this.#skipName('not');
    const name = this.#dotted();
    if (!isTest(name)) this.#unknowns.push({ message: `No test named ${quoted(name)}.`, isCertain: false });
    const test: Expression = { kind: 'test', object, name, given: this.#testArguments() };
    return isNegated ? { kind: 'unary', operator: 'not', operand: test } : test;
  }

  #testArguments(): Arguments {
    if (this.#is('(')) return this.#arguments();
    if (!ARGUMENT_STARTS.has(this.#token.type) || this.#isName('else', 'or', 'and')) return NO_ARGUMENTS;
    if (this.#isName('is')) this.#fail('You cannot chain multiple tests with is');
    return { ...NO_ARGUMENTS, positional: [this.#postfix(this.#primary())] };
  }

  // What is not known

  /** Not known, and no branch of this template's is around it that might never be taken. */
  #ascertain(from: number): void {
    for (const unknown of this.#unknowns.slice(from)) unknown.isCertain = true;
  }

  /** Behind a condition it may never be met. */
  #forgive(from: number): void {
    this.#unknowns = this.#unknowns.filter((unknown, i) => i < from || unknown.isCertain);
  }
}
