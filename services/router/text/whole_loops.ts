/**
 * `{% break %}` and `{% continue %}` keep what their turn of a loop has written before them, as Jinja does; `@huggingface/jinja` 0.5.11
 * drops it. Its interpreter is mended for this thread: a package that does it by itself makes this file needless, and a golden vector shows it.
 */
import { Interpreter } from '@huggingface/jinja';

interface Written {
  value: string;
}

/** What the package has and does not declare. */
interface Evaluation {
  evaluate: (this: Evaluation, statement: { readonly type: string } | undefined, scope: unknown) => Written;
  evaluateBlock: (this: Evaluation, statements: readonly unknown[], scope: unknown) => Written;
  evaluateFor: (this: Evaluation, node: { readonly body: readonly unknown[] }, scope: unknown) => Written;
}

/** A turn that ends early, and what it has written. */
interface Ending {
  readonly isBreak: boolean;
  text: string;
}

interface Loop {
  readonly body: readonly unknown[];
  /** Broken: the turns that are left write nothing. */
  isOver: boolean;
}

/** By what the interpreter throws to end it. */
const endings = new WeakMap<object, Ending>();
/** The loops that run, inner ones last, by their interpreter: each render has its own, and one that was stopped leaves nothing. */
const loopsOf = new WeakMap<Evaluation, Loop[]>();

let isDone = false;

export function keepWholeLoops(): void {
  if (isDone) return;
  isDone = true;
  const { prototype } = Interpreter as unknown as { readonly prototype: Evaluation };
  const { evaluate, evaluateBlock, evaluateFor } = prototype;
  prototype.evaluate = function (statement, scope) {
    const type = statement?.type;
    if (type !== 'Break' && type !== 'Continue') return evaluate.call(this, statement, scope);
    try {
      return evaluate.call(this, statement, scope);
    } catch (control) {
      if (control instanceof Error) endings.set(control, { isBreak: type === 'Break', text: '' });
      throw control;
    }
  };
  prototype.evaluateBlock = function (statements, scope) {
    const loop = loopsOf.get(this)?.at(-1);
    const isTurn = loop?.body === statements;
    const written = evaluateBlock.call(this, [], scope);
    if (isTurn && loop.isOver) return written;
    for (const statement of statements) {
      try {
        written.value += evaluateBlock.call(this, [statement], scope).value;
      } catch (control) {
        const ending = control instanceof Error ? endings.get(control) : undefined;
        if (!ending) throw control;
        ending.text = written.value + ending.text;
        if (!isTurn) throw control;
        loop.isOver = ending.isBreak;
        written.value = ending.text;
        break;
      }
    }
    return written;
  };
  prototype.evaluateFor = function (node, scope) {
    const loops = loopsOf.get(this) ?? [];
    loopsOf.set(this, loops);
    loops.push({ body: node.body, isOver: false });
    try {
      return evaluateFor.call(this, node, scope);
    } finally {
      loops.pop();
    }
  };
}
