/**
 * Checks what every grammar must hold before it is printed: bounds, every rule defined, every rule able to end, no rule that begins with
 * itself. The library for masks aborts or accepts nothing where these do not hold.
 */
import { type Expression, type Grammar, GrammarError, isNever, partsOf, rulesIn } from './grammar.ts';

/** Bounds of a grammar (P1). */
const MAX_RULES = 50_000;
const MAX_NODES = 400_000;
const MAX_TEXT = 2_000_000;
/** Expressions within expressions of one rule; other rules do not count. */
const MAX_DEPTH = 256;
/** A bounded repetition is printed and compiled step by step. */
const MAX_REPEAT = 10_000;
/** Characters of a rule's name in a message. */
const SHOWN = 60;

/** Verifies the grammar. @throws GrammarError that names the rule and says what is wrong with it */
export function checkGrammar({ root, rules }: Grammar): void {
  checkBounds(rules);
  if (!rules.has(root)) throw new GrammarError(`the grammar has no rule ${shown(root)} to begin with`);
  for (const [name, body] of rules) checkDefined(name, body, rules);
  checkProductive(root, rules);
  checkLeftRecursion(rules);
}

function shown(name: string): string {
  return `"${name.length > SHOWN ? `${name.slice(0, SHOWN)}…` : name}"`;
}

function checkBounds(rules: Grammar['rules']): void {
  if (rules.size > MAX_RULES)
    throw new GrammarError(`the grammar has ${rules.size} rules, at most ${MAX_RULES} can be used`);
  let [nodes, characters] = [0, 0];
  for (const [name, body] of rules) {
    const open: [Expression, number][] = [[body, 1]];
    for (let next = open.pop(); next; next = open.pop()) {
      const [expression, depth] = next;
      if (depth > MAX_DEPTH)
        throw new GrammarError(`rule ${shown(name)} nests deeper than ${MAX_DEPTH}: divide it into several rules`);
      if (expression.kind === 'text') characters += expression.text.length;
      if (expression.kind === 'special') characters += expression.name.length;
      if (expression.kind === 'set') nodes += expression.set.length;
      if (expression.kind === 'repeat') checkRepeat(name, expression.min, expression.max);
      if (++nodes > MAX_NODES) throw new GrammarError(`the grammar has more than ${MAX_NODES} parts: make it smaller`);
      for (const part of partsOf(expression)) open.push([part, depth + 1]);
    }
  }
  if (characters > MAX_TEXT)
    throw new GrammarError(`the literals of the grammar have more than ${MAX_TEXT} characters`);
}

function checkRepeat(name: string, min: number, max: number | undefined): void {
  const most = max ?? min;
  if (!Number.isInteger(min) || min < 0 || most < min)
    throw new GrammarError(`rule ${shown(name)} repeats {${min},${max}}: the first number must not be larger`);
  if (most > MAX_REPEAT)
    throw new GrammarError(
      `rule ${shown(name)} repeats ${most} times: at most ${MAX_REPEAT} are possible, or no limit`,
    );
}

function checkDefined(name: string, body: Expression, rules: Grammar['rules']): void {
  const open = [body];
  for (let next = open.pop(); next; next = open.pop()) {
    if (next.kind === 'rule' && !rules.has(next.name))
      throw new GrammarError(`rule ${shown(name)} uses ${shown(next.name)}, which is not defined`);
    for (const part of partsOf(next)) open.push(part);
  }
}

/** Rules whose expressions hold, where `holds` says whether an expression does, given the rules known so far. */
function fixpoint(
  rules: Grammar['rules'],
  holds: (expression: Expression, known: ReadonlySet<string>) => boolean,
): ReadonlySet<string> {
  const users = new Map<string, string[]>();
  for (const [name, body] of rules) {
    for (const used of rulesIn(body)) {
      const list = users.get(used);
      if (list) list.push(name);
      else users.set(used, [name]);
    }
  }
  const known = new Set<string>();
  const open = [...rules.keys()];
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    const body = rules.get(name);
    if (!body || known.has(name) || !holds(body, known)) continue;
    known.add(name);
    for (const user of users.get(name) ?? []) open.push(user);
  }
  return known;
}

function isProductive(expression: Expression, known: ReadonlySet<string>): boolean {
  switch (expression.kind) {
    case 'text':
    case 'special':
      return true;
    case 'set':
      return expression.set.length > 0;
    case 'sequence':
      return expression.items.every((item) => isProductive(item, known));
    case 'choice':
      return expression.items.some((item) => isProductive(item, known));
    case 'repeat':
      return expression.min === 0 || isProductive(expression.item, known);
    case 'rule':
      return known.has(expression.name);
  }
}

/** Returns the rules that match some text. */
export function productiveRules(rules: Grammar['rules']): ReadonlySet<string> {
  return fixpoint(rules, isProductive);
}

function checkProductive(root: string, rules: Grammar['rules']): void {
  const productive = productiveRules(rules);
  if (!productive.has(root)) throw new GrammarError(`the grammar matches no text: rule ${shown(root)} can never end`);
  for (const [name, body] of rules)
    if (!productive.has(name))
      throw new GrammarError(
        isNever(body)
          ? `rule ${shown(name)} matches no text`
          : `rule ${shown(name)} can never end: each alternative needs itself`,
      );
}

/** Whether an expression matches the empty text, given the rules that do. */
function isNullable(expression: Expression, known: ReadonlySet<string>): boolean {
  switch (expression.kind) {
    case 'text':
      return expression.text === '';
    case 'special':
    case 'set':
      return false;
    case 'sequence':
      return expression.items.every((item) => isNullable(item, known));
    case 'choice':
      return expression.items.some((item) => isNullable(item, known));
    case 'repeat':
      return expression.min === 0 || isNullable(expression.item, known);
    case 'rule':
      return known.has(expression.name);
  }
}

/** Returns the rules that match the empty text. */
function nullableRules(rules: Grammar['rules']): ReadonlySet<string> {
  return fixpoint(rules, isNullable);
}

/** Adds the rules that an expression can begin with. */
function addFirst(expression: Expression, nullable: ReadonlySet<string>, first: Set<string>): void {
  switch (expression.kind) {
    case 'text':
    case 'special':
    case 'set':
      return;
    case 'rule':
      first.add(expression.name);
      return;
    case 'repeat':
      addFirst(expression.item, nullable, first);
      return;
    case 'choice':
      for (const item of expression.items) addFirst(item, nullable, first);
      return;
    case 'sequence':
      for (const item of expression.items) {
        addFirst(item, nullable, first);
        if (!isNullable(item, nullable)) return;
      }
  }
}

function checkLeftRecursion(rules: Grammar['rules']): void {
  const nullable = nullableRules(rules);
  const done = new Set<string>();
  for (const start of rules.keys()) {
    if (done.has(start)) continue;
    // Depth first with a path of its own: a chain of rules may be longer than the stack.
    const path: { readonly name: string; readonly open: string[] }[] = [];
    const onPath = new Set<string>();
    const enter = (name: string): void => {
      const first = new Set<string>();
      const body = rules.get(name);
      if (body) addFirst(body, nullable, first);
      path.push({ name, open: [...first] });
      onPath.add(name);
    };
    enter(start);
    for (let top = path.at(-1); top; top = path.at(-1)) {
      const next = top.open.pop();
      if (next === undefined) {
        done.add(top.name);
        onPath.delete(top.name);
        path.pop();
      } else if (onPath.has(next))
        throw leftRecursion(
          next,
          path.map(({ name }) => name),
        );
      else if (!done.has(next)) enter(next);
    }
  }
}

function leftRecursion(name: string, path: readonly string[]): GrammarError {
  const between = path.slice(path.indexOf(name) + 1, path.indexOf(name) + 4).map(shown);
  const through = between.length > 0 ? ` through ${between.join(', ')}` : '';
  return new GrammarError(
    `rule ${shown(name)} begins with itself${through} (left recursion): write the repetition with *, or with the rule at the end`,
  );
}
