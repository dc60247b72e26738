/** Which policy leads, and by which figures another one leads where it is not the default. */
import { bytesText, percent, rateText, secondsText } from '../../shared/report/number_text.ts';
import type { HitCounts, PolicyFigures, RateFigures, ReplayReport } from './report.ts';

/** Policies within this share of the highest goodput count as equal: about the resolution of the search for it. */
const EQUAL_SHARE = 0.01;

/** The policy that leads, and why. */
export interface Verdict {
  /** Name of the policy with the highest goodput, or with the most requests within the targets where goodput was not looked for. */
  readonly leader: string;
  /** Whether no other policy leads the default one; undefined when the default one was not run. */
  readonly isDefaultFirst: boolean | undefined;
  /** One sentence, or the sentences that say why another policy leads. */
  readonly reasons: readonly string[];
}

/** Returns the verdict of a report; a report has at least one policy. */
export function verdictOf({ policies }: Pick<ReplayReport, 'policies'>): Verdict {
  const leader = policies.reduce((best, one) => (scoreOf(one) > scoreOf(best) ? one : best));
  const standard = policies.find(({ isDefault }) => isDefault);
  if (!standard) {
    const only = policies.length === 1 ? 'is the only policy that was run' : 'leads';
    return {
      leader: leader.name,
      isDefaultFirst: undefined,
      reasons: [`${leader.name} ${only}: ${scoreText(leader)}.`],
    };
  }
  if (scoreOf(standard) >= scoreOf(leader) * (1 - EQUAL_SHARE)) {
    const others = policies.filter((one) => one !== standard).toSorted((a, b) => scoreOf(b) - scoreOf(a));
    const next = others[0] ? `; next is ${others[0].name}: ${scoreText(others[0])}` : '';
    const isEqual = others[0] && scoreOf(others[0]) >= scoreOf(standard) * (1 - EQUAL_SHARE);
    const reason = `The default policy ${standard.name} ${isEqual ? 'is among the first' : 'leads'}: ${scoreText(standard)}${next}.`;
    return { leader: isEqual ? leader.name : standard.name, isDefaultFirst: true, reasons: [reason] };
  }
  const spread = seedsOverlap(leader, standard) ? ' The ranges of their seeds overlap.' : '';
  const first = `${leader.name} leads the default policy ${standard.name}: ${scoreText(leader)} against ${scoreText(standard)}.${spread}`;
  return {
    leader: leader.name,
    isDefaultFirst: false,
    reasons: [first, ...differences(leader.atRate, standard.atRate)],
  };
}

function scoreOf({ goodputPerSecond, atRate }: PolicyFigures): number {
  return goodputPerSecond ?? atRate.attainment;
}

function scoreText({ goodputPerSecond, atRate }: PolicyFigures): string {
  return goodputPerSecond === undefined
    ? `${percent(atRate.attainment)} of the requests within the targets at ${rateText(atRate.ratePerSecond)}`
    : `a goodput of ${rateText(goodputPerSecond)}`;
}

function seedsOverlap(a: PolicyFigures, b: PolicyFigures): boolean {
  if (a.goodputOfSeeds.length < 2) return false;
  return Math.min(...a.goodputOfSeeds) <= Math.max(...b.goodputOfSeeds);
}

/** Sentences about the figures in which the leader is better or worse than the default policy by more than a little, largest first. */
function differences(leader: RateFigures, standard: RateFigures): readonly string[] {
  const rates =
    leader.ratePerSecond === standard.ratePerSecond
      ? `At ${rateText(leader.ratePerSecond)}`
      : `At ${rateText(leader.ratePerSecond)} against ${rateText(standard.ratePerSecond)}`;
  const points = (text: string, a: number, b: number): Difference => ({
    text: `${text} ${percent(a)} against ${percent(b)}`,
    size: Math.abs(a - b),
  });
  const ratio = (text: string, a: number, b: number, show: (value: number) => string): Difference => ({
    text: `${text} ${show(a)} against ${show(b)}`,
    size: Math.abs(a - b) / Math.max(a, b, Number.MIN_VALUE),
  });
  const all = [
    points('requests within the TTFT target:', leader.ttftAttainment, standard.ttftAttainment),
    points('requests within the TBT target:', leader.tbtAttainment, standard.tbtAttainment),
    points('prompt tokens computed:', computedShare(leader.hitTokens), computedShare(standard.hitTokens)),
    points('requests rejected:', leader.rejections / leader.numRequests, standard.rejections / standard.numRequests),
    ratio('TTFT p90:', leader.ttftMs.p90, standard.ttftMs.p90, secondsText),
    ratio('TBT p99:', leader.tbtMs.p99, standard.tbtMs.p99, secondsText),
    ratio('bytes moved:', leader.bytesMoved, standard.bytesMoved, bytesText),
  ];
  const shown = all.filter(({ size }) => size > EQUAL_SHARE).toSorted((a, b) => b.size - a.size);
  if (shown.length === 0)
    return [`${rates} their figures differ by no more than ${percent(EQUAL_SHARE)}; they part at higher rates.`];
  return [`${rates} they differ, the leader first, in ${shown.map(({ text }) => text).join('; ')}.`];
}

interface Difference {
  readonly text: string;
  readonly size: number;
}

function computedShare({ device, dram, remote, computed }: HitCounts): number {
  return computed / Math.max(1, device + dram + remote + computed);
}
