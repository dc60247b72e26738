/** One sequence on a simulated instance: a prompt to compute, or an answer to generate after its prompt. */
import type { Sharer } from '../../shared/engine/fair_order.ts';
import type { BlockHash } from '../../shared/kv/block_key.ts';
import type { SimulatedPort } from './simulated_links.ts';

/** Where a sequence stands. */
export type SequencePhase = 'waiting' | 'loading' | 'prompt' | 'generating' | 'ended';

/** An instance as the receiver of KV that another one computes. */
export interface HandoffReceiver {
  readonly name: string;
  readonly port: SimulatedPort;
  /** The last KV of a prompt that another instance computes has come. */
  handedOver(handoff: Handoff): void;
}

/** KV that a prefill sequence sends to a decode sequence as it is computed. */
export interface Handoff {
  readonly engine: HandoffReceiver;
  readonly sequence: SimulatedSequence;
  /** Tokens of the prompt whose KV the prefill instance computes or has; the decode instance computes those after. */
  readonly endTokens: number;
  /** Tokens of the prompt that were sent, or come from elsewhere. */
  sentTokens: number;
  isDone: boolean;
}

/** Tokens of a sequence by where their KV came from. */
export interface TokenCounts {
  device: number;
  dram: number;
  remote: number;
  computed: number;
}

/** Facts and callbacks of a sequence. */
export interface SequenceOptions {
  readonly kind: 'prefill' | 'decode';
  /** Index of the request in the trace. */
  readonly request: number;
  /** Priority of the request; a lower one comes first. */
  readonly priority: number;
  /** The tenant whose share of an instance it takes. */
  readonly sharer: Sharer;
  /** Hashes of the full trace blocks before the tail. */
  readonly hashes: readonly BlockHash[];
  /** Rows of the prompt whose KV is to be there: all of a decode sequence, those that are handed over of a prefill sequence. */
  readonly target: number;
  readonly outputTokens: number;
  /** Tokens that the answer is expected to have. */
  readonly expectedTokens: number;
  /** Prefill sequence: where its KV is sent while it is computed. */
  readonly handoff?: Handoff | undefined;
  /** Decode sequence: the handoff that brings its prompt's KV. */
  readonly expected?: Handoff | undefined;
  /** Called with tokens of the output that come one by one: always the first one, and the first after a preemption. */
  readonly onToken: (sequence: SimulatedSequence) => void;
  /**
   * Called with the tokens that came since, all at once: the milliseconds between each and the one before it, to be copied, and the time
   * of the last one.
   */
  readonly onTokens: (sequence: SimulatedSequence, gaps: Float32Array, lastMs: number) => void;
  readonly onEnd: (sequence: SimulatedSequence) => void;
}

/** Steps of an instance that have ended. */
interface StepCount {
  readonly numSteps: number;
}

/** Tokens of an output: counted one by one, or one for each step of the instance. */
class OutputCount {
  #numAlone = 0;
  #steps: StepCount | undefined;
  /** Steps of the instance when the sequence began to get a token from each. */
  joinedAt = 0;

  get numTokens(): number {
    return this.#steps === undefined ? this.#numAlone : this.#numAlone + this.#steps.numSteps - this.joinedAt;
  }

  /** Counts one token. */
  add(): void {
    this.#numAlone++;
  }

  /** Counts a token with each further step. */
  countBy(steps: StepCount): void {
    this.#steps = steps;
    this.joinedAt = steps.numSteps;
  }

  /** Counts tokens one by one again. */
  countAlone(): void {
    this.#numAlone = this.numTokens;
    this.#steps = undefined;
  }
}

/** A sequence and how far it has come. */
export class SimulatedSequence {
  readonly options: SequenceOptions;
  phase: SequencePhase = 'waiting';
  /** When it came to the instance. */
  arrivedMs = 0;
  /** Tokens with KV on the device. */
  computed = 0;
  /** End, in tokens of the prompt, of the prefix that is on the device or fetched; 0 while nothing is fetched. */
  fetchedTo = 0;
  /** Fetches that have not arrived. */
  numFetching = 0;
  /** Device blocks that it uses. */
  blocks: number[] = [];
  /** Blocks of `blocks` that were named. */
  numSealed = 0;
  /** Whether the sequence was admitted before: its device hits are counted at the first admission only. */
  isAdmitted = false;
  readonly tokens: TokenCounts = { device: 0, dram: 0, remote: 0, computed: 0 };

  readonly output = new OutputCount();

  constructor(options: SequenceOptions) {
    this.options = options;
  }

  /** Tokens of the output so far. */
  get generated(): number {
    return this.output.numTokens;
  }

  /** Tokens whose KV the next step needs, those that it computes included. */
  get length(): number {
    return this.options.target + this.generated;
  }

  /** Rows of the prompt that are to be computed here. */
  get promptRows(): number {
    const { expected } = this.options;
    const comes = expected && this.numFetching > 0 ? expected.endTokens : this.fetchedTo;
    return Math.max(0, this.length - Math.max(this.computed, comes));
  }
}
