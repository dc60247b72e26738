/** A reporter of vitest that writes what failed into the file that $FAILURES_FILE names: files, tests with the first line of each error, files that did not finish, and errors outside of tests. */
import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

const textOf = ({ name, message = '' }) => `${name && !message.startsWith(name) ? `${name}: ` : ''}${message}`;

export default class FailuresReporter {
  onTestRunEnd(modules, unhandledErrors, reason) {
    const failed = modules
      .filter((module) => !module.ok())
      .map((module) => ({
        file: relative(root, module.moduleId).replaceAll('\\', '/'),
        tests: [...module.children.allTests('failed')].map((test) => ({
          name: test.fullName,
          messages: (test.result().errors ?? []).map(textOf),
        })),
        // Errors of hooks and of the file itself.
        errors: [...module.errors(), ...[...module.children.allSuites()].flatMap((suite) => suite.errors())].map(
          textOf,
        ),
      }));
    const outside = unhandledErrors.map(textOf);
    // Files whose worker ended before their last test.
    const unfinished = modules
      .filter((module) => ['queued', 'pending'].includes(module.state()))
      .map(({ moduleId }) => relative(root, moduleId).replaceAll('\\', '/'));
    const file = process.env.FAILURES_FILE;
    if (!file) return;
    const counts = { passed: 0, failed: 0, skipped: 0 };
    for (const module of modules)
      for (const test of module.children.allTests()) {
        const { state } = test.result();
        counts[state === 'pending' ? 'skipped' : state]++;
      }
    writeFileSync(file, JSON.stringify({ reason, counts, failed, unfinished, outside }, null, 2));
  }
}
