/** Parses a template's source to its syntax tree, by Jinja's grammar. */
import { ExpressionParser } from './expression_parser.ts';
import { tokensOf } from './lexer.ts';
import type { Expression, MacroBody, Parameter, Statement, Target } from './syntax.ts';
import { PythonError, quoted } from './values.ts';

const SPECIAL: readonly string[] = ['caller', 'kwargs', 'varargs'];

/** Parses a template. @throws PythonError when the source is no valid template */
export function parse(source: string): Statement[] {
  return new Parser(tokensOf(source)).parse();
}

class Parser extends ExpressionParser {
  /** Names of the open tags. `#ends` has, for each body that is being parsed, the tags that may end it. */
  readonly #tags: string[] = [];
  readonly #ends: (readonly string[])[] = [];
  /** Number of enclosing loops that `break` can leave. */
  #loops = 0;

  parse(): Statement[] {
    const body = this.#statements();
    const [unknown] = this.unknowns;
    if (unknown) throw new PythonError('TemplateAssertionError', unknown.message);
    return body;
  }

  /** Parses statements up to one of the tags `ends`, which is not consumed, or to the end of the template. */
  #statements(ends?: readonly string[]): Statement[] {
    const body: Statement[] = [];
    if (ends) this.#ends.push(ends);
    for (;;) {
      const token = this.token;
      if (token.type === 'eof') break;
      this.at++;
      if (token.type === 'data') body.push({ kind: 'text', text: token.value });
      else if (token.type === 'variable_begin') {
        body.push({ kind: 'print', value: this.tuple() });
        this.expect('variable_end');
      } else {
        if (ends && this.isName(...ends)) break;
        body.push(...this.#statement());
        this.expect('block_end');
      }
    }
    if (ends) this.#ends.pop();
    return body;
  }

  /** Parses the body of a tag and consumes the name of the tag that ends it. */
  #body(ends: readonly string[]): { body: Statement[]; end: string } {
    this.skip(':');
    this.expect('block_end');
    const body = this.#statements(ends);
    if (this.is('eof')) this.#failTag(undefined, ends);
    return { body, end: this.next().value };
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
    this.fail(parts.join(' '));
  }

  #statement(): Statement[] {
    if (!this.is('name')) this.fail('tag name expected');
    const { value: tag } = this.token;
    const parse = this.#tagParser(tag);
    if (!parse) this.#failTag(tag, this.#ends.at(-1));
    this.at++;
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
    const target = this.target('in');
    this.expectName('in');
    const over = this.tuple({ hasConditions: false, end: 'recursive' });
    const test = this.skipName('if') ? this.expression() : undefined;
    const isRecursive = this.skipName('recursive');
    const known = this.unknowns.length;
    this.#loops++;
    const { body, end } = this.#body(['endfor', 'else']);
    this.#loops--;
    const otherwise = end === 'else' ? this.#bodyUntil('endfor') : [];
    this.ascertain(known);
    return { kind: 'for', target, over, test, isRecursive, body, otherwise };
  }

  #if(): Statement {
    const known = this.unknowns.length;
    const branches: { test: Expression; body: Statement[] }[] = [];
    let otherwise: Statement[] = [];
    for (let end = 'elif'; end !== 'endif';) {
      if (end === 'else') {
        otherwise = this.#bodyUntil('endif');
        break;
      }
      const test = this.tuple({ hasConditions: false });
      const parsed = this.#body(['elif', 'else', 'endif']);
      branches.push({ test, body: parsed.body });
      ({ end } = parsed);
    }
    this.forgive(known);
    return { kind: 'if', branches, otherwise };
  }

  #set(): Statement {
    const target = this.target(undefined, true);
    if (this.skip('=')) return { kind: 'set', target, value: this.tuple() };
    const filter = this.filters(undefined);
    const known = this.unknowns.length;
    const body = this.#bodyUntil('endset');
    this.ascertain(known);
    return { kind: 'capture', target, filter: filter?.kind === 'filter' ? filter : undefined, body };
  }

  #macro(): Statement {
    const { value: name } = this.expect('name');
    const macro = this.#macroBody(this.#parameters(), 'endmacro');
    return { kind: 'macro', name, macro };
  }

  #callBlock(): Statement {
    const parameters = this.is('(') ? this.#parameters() : [];
    const call = this.expression();
    if (call.kind !== 'call') this.fail('expected call');
    return { kind: 'callBlock', call, macro: this.#macroBody(parameters, 'endcall') };
  }

  /** Parses the body of a macro or call block. The body is a function of its own, so `break` cannot leave a loop around it. */
  #macroBody(parameters: Parameter[], end: string): MacroBody {
    const [loops, known] = [this.#loops, this.unknowns.length];
    const reads = new Set<string>();
    this.#loops = 0;
    this.reads.push(reads);
    const body = this.#bodyUntil(end);
    this.reads.pop();
    this.#loops = loops;
    this.ascertain(known);
    return { parameters, body, special: new Set(SPECIAL.filter((name) => reads.has(name))) };
  }

  #parameters(): Parameter[] {
    const parameters: Parameter[] = [];
    this.expect('(');
    while (!this.is(')')) {
      if (parameters.length > 0) this.expect(',');
      const { value: name } = this.expect('name');
      const initial = this.skip('=') ? this.expression() : undefined;
      if (!initial && parameters.at(-1)?.initial) this.fail('non-default argument follows default argument');
      if (parameters.some((parameter) => parameter.name === name)) {
        throw new PythonError('SyntaxError', `duplicate argument ${quoted(name)} in function definition`);
      }
      parameters.push({ name, initial });
    }
    this.at++;
    return parameters;
  }

  #filterBlock(): Statement {
    const filter = this.filters(this.filter(undefined));
    const known = this.unknowns.length;
    const body = this.#bodyUntil('endfilter');
    this.ascertain(known);
    if (filter?.kind !== 'filter') this.fail('expected filter');
    return { kind: 'filterBlock', filter, body };
  }

  #with(): Statement {
    const values: [Target, Expression][] = [];
    while (!this.is('block_end')) {
      if (values.length > 0) this.expect(',');
      const target = this.target();
      this.expect('=');
      values.push([target, this.expression()]);
    }
    return { kind: 'with', values, body: this.#bodyUntil('endwith') };
  }

  #block(): Statement {
    const { value: name } = this.expect('name');
    const isScoped = this.skipName('scoped');
    const loops = this.#loops;
    this.#loops = 0;
    const body = this.#bodyUntil('endblock');
    this.#loops = loops;
    this.skipName(name);
    return { kind: 'block', isScoped, body };
  }

  #print(): Statement[] {
    const values: Expression[] = [];
    while (!this.is('block_end')) {
      if (values.length > 0) this.expect(',');
      values.push(this.expression());
    }
    return values.map((value) => ({ kind: 'print', value }));
  }

  /**
   * Parses `{% generation %}`, with which Hugging Face marks the assistant's text. The body is rendered as it is, in a scope of its
   * own.
   */
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
    while (!this.is('block_end') && !this.is('eof')) this.at++;
    return { kind: 'load' };
  }
}
