/** Figures of a benchmark, and the machine that they were measured on. */
import { cpus, totalmem } from 'node:os';

export interface Figure {
  /** `suite/what/case`. */
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  /** Reference value that was measured in the same run. */
  readonly reference?: { readonly name: string; readonly value: number };
  /** value / reference. */
  readonly ratio?: number;
}

export interface Report {
  readonly machine: {
    readonly cpu: string;
    readonly cores: number;
    readonly memoryGiB: number;
    readonly node: string;
    readonly platform: string;
  };
  /** Descriptions of the devices, kernels or peers that computed, by name. */
  readonly engines: Readonly<Record<string, string>>;
  readonly figures: readonly Figure[];
}

export function report(figures: readonly Figure[], engines: Readonly<Record<string, string>> = {}): Report {
  const [first] = cpus();
  return {
    machine: {
      cpu: first?.model ?? 'unknown',
      cores: cpus().length,
      memoryGiB: Math.round(totalmem() / 2 ** 30),
      node: process.version,
      platform: `${process.platform} ${process.arch}`,
    },
    engines,
    figures,
  };
}

export function withReference(
  name: string,
  value: number,
  unit: string,
  referenceName: string,
  reference: number,
): Figure {
  return { name, value, unit, reference: { name: referenceName, value: reference }, ratio: value / reference };
}

/** Linear between the two nearest ranks. */
export function percentile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const at = share * (sorted.length - 1);
  const low = sorted[Math.floor(at)] ?? NaN;
  const high = sorted[Math.ceil(at)] ?? NaN;
  return low + (high - low) * (at - Math.floor(at));
}

export function print({ machine, figures }: Report): void {
  console.log(
    `${machine.cpu}, ${machine.cores} cores, ${machine.memoryGiB} GiB, node ${machine.node}, ${machine.platform}`,
  );
  const width = Math.max(...figures.map(({ name }) => name.length));
  for (const figure of figures) console.log(figureLine(figure, width));
}

/** One figure, with what it is compared with. */
export function figureLine({ name, value, unit, reference, ratio }: Figure, width = 0): string {
  const compared = reference ? `   ${ratio?.toFixed(2)} × ${reference.name} (${format(reference.value)} ${unit})` : '';
  return `${name.padEnd(width)}  ${format(value).padStart(10)} ${unit}${compared}`;
}

function format(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 1 ? value.toFixed(2) : value.toFixed(4);
}
