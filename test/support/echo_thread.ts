/** A thread for tests of threads. */
import { Failure } from '../../shared/base/failure.ts';

interface EchoMethods {
  echo: (text: string) => string;
  shout: (text: string) => void;
  refuse: () => void;
  hang: () => never;
}

export function start({ greeting }: { readonly greeting: string }, emit: (event: string) => void): EchoMethods {
  if (greeting === '') throw new Error('no greeting');
  return {
    echo: (text) => `${greeting} ${text}`,
    shout: (text) => {
      emit(`${text}!`);
    },
    refuse: () => {
      throw new Failure('overloaded', 'not now');
    },
    hang: () => {
      for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1_000);
    },
  };
}
