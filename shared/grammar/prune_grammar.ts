/** Leaves out of a grammar what can never be part of a text: rules without an end, all that needs them, and rules that nobody uses. */
import { productiveRules } from './check_grammar.ts';
import { choiceOf, type Expression, type Grammar, NEVER, partsOf, repeat, rulesIn, sequenceOf } from './grammar.ts';

/** Returns the grammar without its dead parts; undefined when it matches no text. */
export function pruned({ root, rules }: Grammar): Grammar | undefined {
  const productive = productiveRules(rules);
  if (!productive.has(root)) return undefined;
  const kept = new Map<string, Expression>();
  const open = [root];
  for (let name = open.pop(); name !== undefined; name = open.pop()) {
    const body = rules.get(name);
    if (!body || kept.has(name)) continue;
    const alive = withoutDead(body, productive);
    kept.set(name, alive);
    for (const used of rulesIn(alive)) open.push(used);
  }
  return { root, rules: kept };
}

/** An expression without a dead part stays the same object: loops of one object are printed once. */
function withoutDead(expression: Expression, productive: ReadonlySet<string>): Expression {
  const parts = partsOf(expression);
  const alive = parts.map((part) => withoutDead(part, productive));
  const [only = NEVER] = alive;
  if (expression.kind === 'rule' && !productive.has(expression.name)) return NEVER;
  if (alive.every((part, i) => part === parts[i])) return expression;
  switch (expression.kind) {
    case 'sequence':
      return sequenceOf(alive);
    case 'choice':
      return choiceOf(alive);
    case 'repeat':
      return repeat(only, expression.min, expression.max);
    case 'text':
    case 'special':
    case 'set':
    case 'rule':
      return expression;
  }
}
