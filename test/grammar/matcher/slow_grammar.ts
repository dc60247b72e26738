/** A sound grammar whose compile takes far longer than any limit of a test. */

/**
 * A chain of optional rules: the library's time grows with the square of their number. 6,000 took 42 s of CPU where 1,500 took 1 s, so that
 * a limit of 1 s is passed on any machine. `variant` makes each another one.
 */
export function slowGrammar(variant = 0): string {
  const count = 6_000 + variant;
  const rules = Array.from({ length: count }, (_, i) => `r${i} ::= ("x${i}")? r${i + 1}`);
  return ['root ::= r0', ...rules, `r${count} ::= "y"`].join('\n');
}
