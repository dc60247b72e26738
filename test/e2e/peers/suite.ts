/**
 * A suite of black-box checks that a peer's own tests make of its server, in our words. Groups and checks have the names of their
 * source, so that a reader finds it.
 *
 * A check that is marked fails as `test.fails`: as soon as it passes, the run is red until its mark is removed. With PLAIN_CHECKS=1
 * marked checks run as plain tests, which shows why each of them fails.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'vitest';
import { projectPath } from '../../support/project.ts';

/** Marked checks, each as `group name`. */
interface Marks {
  /** Number of checks of the suite. */
  readonly numChecks: number;
  /** Checks that fail by decision, with the reason. The notes on the API list them. */
  readonly byDecision: Readonly<Record<string, string>>;
  /** Checks that fail because a feature is not there yet, by feature. A check that passes is removed from here. */
  readonly awaited?: Readonly<Record<string, readonly string[]>>;
}

/** Defines one check: its name in the source, and the test. */
export type Check = (name: string, body: () => Promise<void>) => void;

/** Returns the checks that the notes on the API list of a suite, one line for each row, without quotes. */
function listedChecks(peer: string): string {
  const page = readFileSync(projectPath('services/router/API_NOTES.md'), 'utf8').replaceAll('`', '');
  const [, table = ''] = page.split('| suite ');
  const [, ...rows] = (table.split('\n\n')[0] ?? '').split('\n');
  let suite = '';
  const checks = rows.flatMap((row) => {
    const [, label = '', check = ''] = row.split('|').map((cell) => cell.trim());
    suite = label || suite;
    return suite === peer ? [check] : [];
  });
  return checks.join('\n');
}

/** One peer's suite. */
export class PeerSuite {
  readonly #peer: string;
  readonly #numChecks: number;
  /** Why a check fails, by its name. */
  readonly #marks: ReadonlyMap<string, string>;
  readonly #decided: readonly string[];
  /** Names of the defined checks, by group and name. */
  readonly #defined = new Map<string, string>();

  constructor(peer: string, { numChecks, byDecision, awaited = {} }: Marks) {
    this.#peer = peer;
    this.#numChecks = numChecks;
    this.#decided = Object.keys(byDecision);
    this.#marks = new Map([
      ...Object.entries(byDecision).map(([name, reason]) => [name, `by decision: ${reason}`] as const),
      ...Object.entries(awaited).flatMap(([feature, names]) =>
        names.map((name) => [name, `awaits ${feature}`] as const),
      ),
    ]);
  }

  /** Defines the checks of one file of the peer's tests. */
  group(file: string, define: (check: Check) => void): void {
    describe(file, () => {
      define((name, body) => {
        const key = `${file} ${name}`;
        assert(!this.#defined.has(key), `${key} is there once`);
        this.#defined.set(key, name);
        const mark = this.#marks.get(key);
        if (mark === undefined || process.env['PLAIN_CHECKS'] === '1') test(name, body);
        else test.fails(`${name} (${mark})`, body);
      });
    });
  }

  /** Defines the last test, whose name has the counts: every check is there, and every mark names one. */
  end(): void {
    const numRight = this.#numChecks - this.#marks.size;
    test(`${this.#peer}: ${numRight} of ${this.#numChecks} are right, ${this.#decided.length} fail by decision`, () => {
      assert.equal(this.#defined.size, this.#numChecks);
      assert.deepEqual(
        [...this.#marks.keys()].filter((key) => !this.#defined.has(key)),
        [],
        'every mark names a check',
      );
    });
    test('the checks that fail by decision are in the README, and no others', () => {
      let left = listedChecks(this.#peer);
      const names = this.#decided.map((key) => this.#defined.get(key) ?? key);
      for (const name of names.toSorted((one, other) => other.length - one.length)) {
        assert(left.includes(name), `${name} is listed`);
        left = left.replace(name, '');
      }
      assert.match(left, /^[\s,…]*$/, 'the README lists only checks that fail');
    });
  }
}
