/**
 * The webgpu suites under other software drivers: SwiftShader, and Mesa's under the validation layer with GPU-assisted checks and
 * without guards. `npm run test:drivers [-- swiftshader|validation]`; ten minutes each on two cores.
 */
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { swiftShader, validationLayer } from './gpu_drivers.js';

const vitest = fileURLToPath(new URL('../node_modules/vitest/vitest.mjs', import.meta.url));
const conformance = 'kernels/webgpu.test';
/** A program of one step, and one with an index that is changed by hand. */
const wrongIndex = fileURLToPath(new URL('../dist/test/kernels/wrong_index.js', import.meta.url));

function run(env, ...suites) {
  const args = ['run', '--config', 'config/vitest.config.js', ...suites];
  return spawnSync(process.execPath, [vitest, ...args], { stdio: 'inherit', env: { ...process.env, ...env } }).status;
}

const checks = {
  swiftshader() {
    const env = swiftShader();
    if (!env) return 'SwiftShader is not there: install Debian’s chromium';
    const status = run({ ...env, TEST_DRIVER: 'swiftshader' }, conformance, 'kernels/webgpu_models');
    return status === 0 ? '' : 'a suite failed under SwiftShader';
  },
  validation() {
    const folder = mkdtempSync(join(tmpdir(), 'penstock-validation-'));
    try {
      return validated(folder);
    } finally {
      rmSync(folder, { recursive: true });
    }
  },
};

/** Faults that the layer wrote into its log; warnings are of the layer itself. */
function findingsIn(log) {
  if (!existsSync(log)) return [];
  return readFileSync(log, 'utf8')
    .split(/^(?=Validation )/m)
    .filter((entry) => entry.startsWith('Validation Error'));
}

function validated(folder) {
  if (!validationLayer(`${folder}/none`)) return 'the validation layer is not there: install Debian’s chromium';
  const stepWith = (name) => {
    const log = `${folder}/${name ?? 'right'}.txt`;
    const env = { ...process.env, ...validationLayer(log) };
    const { stdout } = spawnSync(process.execPath, [wrongIndex, ...(name ? [name] : [])], { env, encoding: 'utf8' });
    return stdout.includes('done') ? findingsIn(log).length : NaN;
  };
  const names = spawnSync(process.execPath, [wrongIndex, '--list'], { encoding: 'utf8' }).stdout.split(' ');
  for (const name of names) {
    const found = stepWith(name);
    console.log(`validation layer: the wrong index ${name} gives ${found} findings`);
    if (!(found > 0)) return `the validation layer does not find the wrong index ${name}`;
  }
  if (stepWith() !== 0) return 'the validation layer has findings in a small model’s step';
  const log = `${folder}/suite.txt`;
  const status = run({ ...validationLayer(log), TEST_DRIVER: 'validated' }, conformance);
  const findings = findingsIn(log);
  for (const finding of findings.slice(0, 20)) console.error(finding);
  console.log(`validation layer: ${findings.length} findings in the suite`);
  if (status !== 0) return 'a suite failed under the validation layer';
  return findings.length === 0 ? '' : `the validation layer found ${findings.length} faults`;
}

const [only] = process.argv.slice(2);
const failures = Object.entries(checks)
  .filter(([name]) => only === undefined || name === only)
  .map(([, check]) => check())
  .filter((why) => why !== '');
for (const why of failures) console.error(why);
process.exit(failures.length > 0 ? 1 : 0);
