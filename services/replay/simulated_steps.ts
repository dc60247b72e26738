/** How long the steps of a simulated instance take by its hardware, and the production pacing of prompts over these times. */
import type { PromptTime } from '../../shared/engine/prompt_time.ts';
import type { StepTimes } from '../../shared/engine/step_budget.ts';
import { StepPacing } from '../../shared/engine/step_pacing.ts';
import { pairsOf, type StepTime, type StepWork } from '../../shared/protocol/instance_work.ts';
import { stepSeconds } from './hardware.ts';
import type { EngineSizes } from './replay_engine.ts';

/**
 * Rows of a step at most, and the share by which a step takes longer or shorter than the formula of the hardware says. Long steps waste
 * least of what each step costs; with sequences that generate they are paced.
 */
export const stepSettings = { chunkTokens: 4_096, noise: 0.02 } as const;

/** Weight of a step's time in the running time between two tokens. */
const SHARE = 0.05;

/** Step times of one simulated instance. */
export class SimulatedSteps {
  readonly #sizes: EngineSizes;
  readonly #pacing: StepPacing;
  /** Running milliseconds of steps in which sequences generate. */
  tokenMs: number;

  constructor(sizes: EngineSizes) {
    this.#sizes = sizes;
    this.#pacing = new StepPacing({ stepMs: 0, tbtTargetMs: sizes.tbtTargetMs ?? 0, firstSteps: this.firstSteps });
    this.tokenMs = this.hardwareMs({ rows: 1, pairs: 0, contextTokens: 0, sequences: 1 });
  }

  /** The steps that an engine measures when it starts: a token and a chunk, and both after a context of sixteen chunks. */
  get firstSteps(): StepTimes[] {
    const { chunkTokens } = this.#sizes;
    return [0, 16 * chunkTokens].flatMap((start) => {
      const token = { rows: 1, pairs: 0, contextTokens: start + 1, sequences: 1 };
      const chunk = { rows: chunkTokens, pairs: pairsOf(start, chunkTokens), contextTokens: 0, sequences: 1 };
      return [
        { ...token, tokenRows: 1, promptRows: 0, ms: this.hardwareMs(token) },
        { ...chunk, tokenRows: 0, promptRows: chunkTokens, ms: this.hardwareMs(chunk) },
      ];
    });
  }

  /** The milliseconds of a step by the formula of the hardware. */
  hardwareMs({ rows, pairs, contextTokens, sequences }: StepWork): number {
    const { hardware, slowness } = this.#sizes;
    return 1e3 * slowness * stepSeconds(hardware, rows, pairs, contextTokens, sequences);
  }

  /** Coefficients as the engine has fitted them. */
  get step(): StepTime {
    return this.#pacing.fit.time;
  }

  get pacedMs(): number {
    return this.#pacing.pacedStepMs;
  }

  /** Returns the time that prompts get with sequences that generate; undefined without a limit. */
  promptTime(tokens: StepWork): PromptTime | undefined {
    return tokens.sequences === 0 ? undefined : this.#pacing.promptTime(tokens);
  }

  /** Returns how many rows of prompts may go with so many that generate, whatever their place in the prompt. */
  promptRows(numGenerating: number): number {
    return this.#pacing.promptRows(numGenerating);
  }

  /** Records a step that has ended. */
  took(work: StepWork, promptRows: number, ms: number): void {
    const { rows, pairs, contextTokens, sequences } = work;
    const tokenRows = rows - promptRows;
    this.#pacing.took({ tokenRows, promptRows, ms, pairs, contextTokens, sequences });
    if (tokenRows > 0) this.tokenMs += SHARE * (ms - this.tokenMs);
  }
}
