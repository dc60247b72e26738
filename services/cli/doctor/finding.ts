/** Findings of `penstock doctor`: what a check has seen, and what to do about it. */

/** Result of one check. A finding is made only by a check that has run. */
export interface Finding {
  /** Name of the check, such as `disk` or `member decode-1`. */
  readonly check: string;
  readonly level: 'ok' | 'warning' | 'problem';
  /** Sentence for people: what was measured. */
  readonly text: string;
  /** Sentence that says what to do; absent when all is well. */
  readonly cure?: string;
}

/** Returns a finding without fault. */
export function ok(check: string, text: string): Finding {
  return { check, level: 'ok', text };
}

/** Returns a finding of something that works, but worse than it could. */
export function warning(check: string, text: string, cure: string): Finding {
  return { check, level: 'warning', text, cure };
}

/** Returns a finding of something that does not work. */
export function problem(check: string, text: string, cure: string): Finding {
  return { check, level: 'problem', text, cure };
}

/** Returns a number of bytes for people, such as `1.5 GiB`. */
export function sizeText(bytes: number): string {
  if (bytes < 2 ** 20) return `${(bytes / 2 ** 10).toFixed(0)} KiB`;
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

/** Returns milliseconds for people, with one decimal below 10. */
export function msText(ms: number): string {
  return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}

const MARK = { ok: 'ok', warning: 'warning', problem: 'PROBLEM' } as const;
const MARK_WIDTH = 8;

/** Returns findings as lines of text, each with its cure below it, and a last line that counts them. */
export function findingsText(given: readonly Finding[]): string {
  const findings = given.map((finding) => ({ ...finding, check: shown(finding.check), text: shown(finding.text) }));
  const width = Math.max(...findings.map(({ check }) => check.length));
  const indent = ' '.repeat(MARK_WIDTH + width + 3);
  const lines = findings.flatMap(({ check, level, text, cure }) => [
    `${MARK[level].padEnd(MARK_WIDTH)} ${check.padEnd(width)}  ${text}`,
    ...(cure === undefined ? [] : [`${indent}→ ${cure}`]),
  ]);
  const count = (level: Finding['level']): number => findings.filter((one) => one.level === level).length;
  return [...lines, countsText(findings.length, count('problem'), count('warning'))].join('\n');
}

function countsText(...[checks, problems, warnings]: readonly [number, number, number]): string {
  const some = (count: number, name: string): string => `${count} ${name}${count === 1 ? '' : 's'}`;
  return `${some(checks, 'check')}, ${some(problems, 'problem')}, ${some(warnings, 'warning')}`;
}

/** Returns text without control characters: names of members and messages of processes come from elsewhere, and a terminal would obey them. */
function shown(text: string): string {
  return text.replaceAll(/\p{C}/gu, '?');
}
