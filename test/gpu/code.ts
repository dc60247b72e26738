/**
 * `npm run gpu:code [-- NAME]`: what the compilers of an RDNA 3 and an Ada card make of every kernel, on a machine that has neither. A line
 * a kernel, and one for each loop that loads; fails where a budget is exceeded. NAME: kernels whose name contains it.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { budgets, MAX_SPILLS } from './budgets.ts';
import { openCards, type Card } from './cards.ts';
import { compileFor, type MachineCode } from './machine_code.ts';
import { allVariants, type Variant } from './variants.ts';

/** Why a kernel is beyond its budget; empty when it is not. */
function excesses(card: Card, { name, weightsPerTurn }: Variant, code: MachineCode): string[] {
  const budget = budgets.find((one) => one.card === card.name && one.kernel.test(name));
  const why: string[] = [];
  const atMost = (what: string, have: number, most: number | undefined): void => {
    if (most !== undefined && !(have <= most)) why.push(`${what} ${have}, at most ${most}`);
  };
  const atLeast = (what: string, have: number, least: number | undefined): void => {
    if (least !== undefined && !(have >= least)) why.push(`${what} ${have}, at least ${least}`);
  };
  atMost('spills', code.spills, MAX_SPILLS);
  atMost('registers', code.registers, budget?.maxRegisters);
  atLeast('occupancy', code.occupancy, budget?.minOccupancy);
  const mostInFlight = (loops: MachineCode['loops']): number =>
    Math.max(0, ...loops.map(({ bytesInFlight }) => bytesInFlight));
  atLeast('bytes in flight', mostInFlight(code.loops), budget?.minBytesInFlight);
  const between = code.loops.filter(({ barriers }) => barriers > 0);
  atLeast('bytes in flight between barriers', mostInFlight(between), budget?.minBytesBetweenBarriers);
  atMost('vector instructions a weight', vectorPerWeight(weightsPerTurn, code) ?? NaN, budget?.maxVectorPerWeight);
  atLeast('matrix instructions', code.all.matrix, budget?.minMatrix);
  return why;
}

/**
 * Returns the vector instructions per weight in the loop over weights: the innermost loading loop and its enclosing loop's own
 * instructions. The inner loop covers half a group, so it counts twice.
 */
function vectorPerWeight(weightsPerTurn: number | undefined, { loops }: MachineCode): number | undefined {
  if (weightsPerTurn === undefined) return undefined;
  const loading = loops.filter(({ loads, barriers }) => loads > 0 && barriers === 0);
  const [turn] = loading;
  if (!turn) return undefined;
  const half = loops[loops.indexOf(turn) + 1];
  const vector = turn.vector + (half && half.depth > turn.depth ? 2 * half.vector : 0);
  return Number((vector / weightsPerTurn).toFixed(2));
}

function report(card: Card, variant: Variant, code: MachineCode): string[] {
  const { registers, occupancy, spills, workgroupBytes, all, loops } = code;
  const perWeight = vectorPerWeight(variant.weightsPerTurn, code);
  const memory = Number.isNaN(workgroupBytes) ? '' : `, ${workgroupBytes} bytes of workgroup memory`;
  const weights = perWeight === undefined ? '' : `, ${perWeight} instructions a weight`;
  const matrices = all.matrix > 0 ? `, ${all.matrix} matrix` : '';
  return [
    `${card.name}  ${variant.name}: ${all.instructions} instructions${matrices}${weights}, ${registers} registers, occupancy ${occupancy}${memory}, ${spills} spills`,
    ...loops
      .filter(({ loads }) => loads > 0)
      .map(
        ({ depth, instructions, vector, loads, inFlight, bytesInFlight }) =>
          `    ${'  '.repeat(depth)}loop of ${instructions}: ${vector} vector, ${loads} loads, ${inFlight} in flight (${bytesInFlight} B)`,
      ),
  ];
}

const [part = ''] = process.argv.slice(2);
const { cards, why } = await openCards();
for (const line of why) console.log(`skipped: ${line}`);
const folder = mkdtempSync(`${tmpdir()}/gpu-code-`);
const failures: string[] = [];
try {
  for (const card of cards) {
    mkdirSync(`${folder}/${card.adapter}`);
    const variants = allVariants(card.name === 'Ada' ? 32 : 64, card.name !== 'Ada').filter(({ name }) =>
      name.includes(part),
    );
    const paths = variants.map(({ code }, i) => {
      const path = `${folder}/${card.adapter}/${i}.wgsl`;
      writeFileSync(path, code);
      return path;
    });
    compileFor(card, paths).forEach((code, i) => {
      const variant = variants[i]!;
      if (code instanceof Error) {
        failures.push(`${card.name}  ${variant.name}: ${code.message}`);
        return;
      }
      console.log(report(card, variant, code).join('\n'));
      const exceeded = excesses(card, variant, code);
      if (exceeded.length > 0) failures.push(`${card.name}  ${variant.name}: ${exceeded.join('; ')}`);
    });
  }
} finally {
  rmSync(folder, { recursive: true });
}
for (const failure of failures) console.log(`beyond its budget  ${failure}`);
console.log(
  failures.length === 0
    ? 'every kernel is within its budget'
    : `${failures.length} kernels are not within their budgets`,
);
process.exitCode = failures.length > 0 ? 1 : 0;
