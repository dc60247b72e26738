/**
 * Rules of eslint about time. A test waits for a state (`until`), or for nothing to happen (`staysSo`); both stand in test/support/until.ts
 * with the only limit, which ends what hangs. Time, CPU and memory are measured in test/alone and benchmarks. An exception is
 * `// eslint-disable-next-line time/speed -- why`.
 */

const FIXED = 'waits for a fixed time: until(...) waits for what comes, staysSo(...) for what must not';
const LIMIT = 'limits work by wall time: PATIENCE_MS, patient or PATIENCE of test/support/until.ts';
const MEASURES = 'measures time: assert the order of events, or play the clock';
const READS_CLOCK = 'CallExpression[callee.object.name="systemClock"][callee.property.name="nowMs"]';
/** Names under which a limit is handed over. */
const LIMIT_NAMES = '/^(timeout|timeoutMs|untilMs|limitMs|testTimeout)$/';

const speedSelectors = {
  'CallExpression[callee.object.name=/^(performance|Date)$/][callee.property.name="now"]': MEASURES,
  [`VariableDeclarator > ${READS_CLOCK}`]: MEASURES,
  [`BinaryExpression:not([operator="+"][right.name="PATIENCE_MS"]) > ${READS_CLOCK}`]: MEASURES,
  'MemberExpression[object.name="process"][property.name=/^(cpuUsage|hrtime|memoryUsage)$/]':
    'measures CPU or memory: test/alone and benchmarks do',
  'CallExpression[callee.name="sleep"]': FIXED,
  'ImportSpecifier[imported.name="setTimeout"]:not([local.name="sleep"])':
    'call it sleep, which another rule looks for',
  'CallExpression[callee.object.name="systemClock"][callee.property.name="sleep"]': FIXED,
  'CallExpression[callee.name=/^set(Timeout|Interval)$/]:not([arguments.1.value=0])': FIXED,
  'CallExpression[callee.property.name="waitForTimeout"]': FIXED,
  'CallExpression[callee.object.name="AbortSignal"][callee.property.name="timeout"]:not([arguments.0.name="PATIENCE_MS"])':
    LIMIT,
  [`Property[key.name=${LIMIT_NAMES}] > Literal[raw=/^[1-9]/]`]: LIMIT,
  'Literal[value=/^--[a-z-]+-ms$/] + Literal[value=/^[0-9]+$/]':
    'a limit of wall time in a running product: PATIENCE, and stop the process that must be late',
  'Literal[value=/^--[a-z-]+-ms=[0-9]/]': 'a limit of wall time in a running product: PATIENCE',
  'CallExpression[callee.object.name="expect"][callee.property.name="poll"]': 'has a limit of its own: until(...)',
  'CallExpression[callee.object.name="vi"][callee.property.name="waitFor"]': 'has a limit of its own: until(...)',
  'CallExpression[callee.object.name="Math"][callee.property.name="random"]': 'chance without a seed',
};

const isFunction = ({ type }) => type === 'ArrowFunctionExpression' || type === 'FunctionExpression';

/** Finds what makes a test depend on the speed of the machine. */
const speed = {
  meta: { type: 'problem', schema: [] },
  create(context) {
    const listeners = Object.fromEntries(
      Object.entries(speedSelectors).map(([selector, message]) => [
        selector,
        (node) => context.report({ node, message }),
      ]),
    );
    return {
      ...listeners,
      /** `test('…', () => …, 30_000)` and the like. */
      CallExpression({ callee, arguments: args }) {
        const last = args.at(-1);
        if (callee.property?.name === 'reduce' || /^set(Timeout|Interval)$/.test(callee.name)) return;
        if (last?.type === 'Literal' && last.value >= 1_000 && args.some(isFunction))
          context.report({ node: last, message: LIMIT });
      },
    };
  },
};

/** An exception says why it is one. */
const reason = {
  meta: { type: 'problem', schema: [] },
  create(context) {
    return {
      Program() {
        for (const comment of context.sourceCode.getAllComments())
          if (/^\s*eslint-disable/.test(comment.value) && !/\s--\s+\S/.test(comment.value))
            context.report({
              loc: comment.loc,
              message: 'an exception without a reason: end the comment with `-- why`',
            });
      },
    };
  },
};

export const time = { rules: { speed, reason } };
