/** A grammar thread that ends, hangs or fails on purpose: a comment in the grammar's text says when. */
import type {
  AcceptRequest,
  MaskState,
  MaskWorkerData,
  OpenRequest,
  Refusal,
} from '../../../shared/grammar/matcher/mask_matchers.ts';
import { MaskWorker } from '../../../shared/grammar/matcher/mask_matchers.ts';
import { XGrammar } from '../../../shared/grammar/matcher/xgrammar.ts';

/** Token that a grammar with "accept" in its comment fails of. */
const FATAL = 'z'.charCodeAt(0);

class FailingWorker extends MaskWorker {
  readonly #working: Int32Array;
  readonly #faults = new Map<number, { readonly grammar: number; readonly fault: string }>();

  constructor(data: MaskWorkerData) {
    super(data, (table) => XGrammar.load(table));
    this.#working = data.working;
  }

  override open(request: OpenRequest): Promise<MaskState | Refusal | undefined> {
    const fault = /# (\w+ \w+)/.exec(request.ebnf ?? '')?.[1];
    if (fault !== undefined) this.#faults.set(request.id, { grammar: request.grammar, fault });
    this.#fail(request.grammar, 'open', fault);
    return super.open(request);
  }

  override check(ebnf: string): Promise<Refusal | undefined> {
    this.#fail(1, 'check', /# (\w+ \w+)/.exec(ebnf)?.[1]);
    return super.check(ebnf);
  }

  override accept(request: AcceptRequest): Promise<(MaskState | undefined)[]> {
    for (const { id, token } of request.steps) {
      const { grammar, fault } = this.#faults.get(id) ?? {};
      if (token === FATAL && grammar !== undefined) this.#fail(grammar, 'accept', fault);
    }
    return super.accept(request);
  }

  #fail(grammar: number, when: string, fault: string | undefined): void {
    if (fault?.endsWith(when) !== true) return;
    Atomics.store(this.#working, 0, grammar);
    if (fault.startsWith('exit')) process.exit(3);
    if (fault.startsWith('throw')) throw new Error('memory access out of bounds');
    // Waits without CPU time for what never comes.
    if (fault.startsWith('wait')) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
    for (;;) Atomics.load(this.#working, 0);
  }
}

export function start(data: MaskWorkerData): MaskWorker {
  return new FailingWorker(data);
}
