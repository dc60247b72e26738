/**
 * Search for goodput: the highest rate of requests at which enough of them meet their targets. More load never helps, but for the noise of
 * a run: the search narrows the rates between the highest one that met the targets and the lowest one that did not. Where to look in
 * between, it reads off the shares that were within the targets there.
 *
 *   guess ──met──► a large step up, because a run that does not meet the targets is cut and soon over ──► from above, by its share
 *   both sides ──► interpolated ──► where that is next to a rate: the rate that ends the search if it is on the other side
 */

/** Result of one run of a search. */
export interface RateTrial {
  readonly ratePerSecond: number;
  /** Share of requests within both targets. Of a run that was cut because too few are, the share of those that were decided by then. */
  readonly attainment: number;
}

/** How a rate is tried, and where the search begins and ends. */
export interface GoodputOptions<Trial extends RateTrial> {
  readonly attempt: (ratePerSecond: number) => Promise<Trial>;
  /** Share of requests that must be within both targets. */
  readonly share: number;
  /** First rate that is tried, in requests per second. */
  readonly guess: number;
  /** Part of a rate to which goodput is found. */
  readonly tolerance: number;
  /** Step up from a rate at which nearly all requests are within the targets, as a part of it. */
  readonly step: number;
}

/** Rates below this part of the guess are not tried: the goodput is 0. */
const LEAST = 1 / 256;
/** Rates above this multiple of the guess are not tried: the trace does not load the cluster. */
const MOST = 256;
/** Largest factor from one rate to the next. */
const MOST_FACTOR = 8;
/** The rate that is to end the search is a little nearer to its neighbour than the tolerance. */
const NEAR = 0.95;

/**
 * Rough distance from goodput by attainment, as measured on Mooncake's conversation trace under several policies. Up to `TELLING` above the
 * wanted share it is proportional; higher attainment carries no information.
 */
const TELLING = 0.07;
const ABOVE = 0.7;
const BELOW = 0.3;
/** Share within the targets of a run far above goodput, and how the distance grows towards it. */
const HOPELESS = 0.13;
const OVERLOAD = 0.08;

/** Returns the trial with the highest rate that met the targets; undefined when none did. */
export async function findGoodput<Trial extends RateTrial>(options: GoodputOptions<Trial>): Promise<Trial | undefined> {
  const { attempt, share, guess, tolerance } = options;
  const bracket = new Bracket<Trial>(options);
  let rate = guess;
  while (rate >= LEAST * guess && rate <= MOST * guess) {
    const trial = await attempt(rate);
    bracket.add(trial, trial.attainment >= share);
    const { low, high } = bracket;
    if (low && high && high.ratePerSecond - low.ratePerSecond <= tolerance * high.ratePerSecond) break;
    rate = bracket.next();
  }
  return bracket.low;
}

/** The rates next to goodput that were tried. */
class Bracket<Trial extends RateTrial> {
  readonly #options: GoodputOptions<Trial>;
  /** The highest rate that met the targets, and the lowest that did not. */
  low: Trial | undefined;
  high: Trial | undefined;
  #wasMet = false;
  /** Trials one after the other on the same side. */
  #numAlike = 0;
  /** Ratio of both rates before each of the last two trials. */
  #ratios: readonly number[] = [];

  constructor(options: GoodputOptions<Trial>) {
    this.#options = options;
  }

  add(trial: Trial, isMet: boolean): void {
    if (this.low && this.high) this.#ratios = [...this.#ratios.slice(-1), this.#ratio];
    if (isMet) this.low = trial;
    else this.high = trial;
    this.#numAlike = isMet === this.#wasMet ? this.#numAlike + 1 : 1;
    this.#wasMet = isMet;
  }

  get #ratio(): number {
    return (this.high?.ratePerSecond ?? Infinity) / (this.low?.ratePerSecond ?? 0);
  }

  /** Returns the rate to try next. */
  next(): number {
    const { low, high } = this;
    if (low && high) return this.#between(low.ratePerSecond, high.ratePerSecond);
    // Each further step on one side is three times as long at least.
    const least = (1 - NEAR * this.#options.tolerance) ** -(3 ** (this.#numAlike - 1));
    const factor = Math.min(MOST_FACTOR, Math.max(least, this.#distance(low ?? high) ?? 1 + this.#options.step));
    return low ? low.ratePerSecond * factor : (high?.ratePerSecond ?? this.#options.guess) / factor;
  }

  #between(low: number, high: number): number {
    const middle = Math.sqrt(low * high);
    const near = 1 - NEAR * this.#options.tolerance;
    const below = this.#distance(this.high) ?? 1;
    const above = this.#distance(this.low);
    if (above === undefined) {
      // Twice as far each time that this is not far enough.
      const far = Math.max(below, 1 / near) ** (this.#wasMet ? 1 : 2 ** (this.#numAlike - 1));
      return high / far > low ? high / far : middle;
    }
    const [before = Infinity] = this.#ratios;
    // Estimates that do not lead on are wrong.
    if (this.#ratios.length === 2 && Math.log(this.#ratio) > 0.5 * Math.log(before)) {
      this.#ratios = [];
      return middle;
    }
    // The end that stays while the other one moves counts half as far each time (the Illinois rule).
    const halves = 0.5 ** (this.#numAlike - 1);
    const [up, down] = [Math.log(above) * (this.#wasMet ? 1 : halves), Math.log(below) * (this.#wasMet ? halves : 1)];
    const estimate = low * (high / low) ** (up / (up + down));
    if (estimate <= low / near) return Math.min(low / near, middle);
    if (estimate >= high * near) return Math.max(high * near, middle);
    return estimate;
  }

  /** Returns the factor between a rate and goodput, by the share within the targets; undefined where it does not tell. */
  #distance(trial: Trial | undefined): number | undefined {
    if (!trial) return undefined;
    const more = trial.attainment - this.#options.share;
    if (more >= 0) return more < TELLING ? 1 + ABOVE * more : undefined;
    if (trial.attainment <= HOPELESS) return MOST_FACTOR;
    return Math.min(MOST_FACTOR, 1 - BELOW * more + OVERLOAD * (-more / (trial.attainment - HOPELESS)) ** 1.5);
  }
}
