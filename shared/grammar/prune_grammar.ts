/** Leaves out of a grammar what can never be part of a text: rules without an end, all that needs them, and rules that nobody uses. */
import { productiveRules } from './check_grammar.ts';
import { choice, type Expression, type Grammar, NEVER, repeat, rulesIn, sequence } from './grammar.ts';

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

function withoutDead(expression: Expression, productive: ReadonlySet<string>): Expression {
  switch (expression.kind) {
    case 'text':
    case 'set':
      return expression;
    case 'rule':
      return productive.has(expression.name) ? expression : NEVER;
    case 'sequence':
      return sequence(...expression.items.map((item) => withoutDead(item, productive)));
    case 'choice':
      return choice(...expression.items.map((item) => withoutDead(item, productive)));
    case 'repeat':
      return repeat(withoutDead(expression.item, productive), expression.min, expression.max);
  }
}
