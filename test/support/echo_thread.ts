/** A thread for tests of threads. */
import { Failure } from '../../shared/base/failure.ts';

interface EchoMethods {
  echo: (text: string) => string;
  shout: (text: string) => void;
  refuse: () => void;
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
  };
}
