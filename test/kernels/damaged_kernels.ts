/** Kernels with one instruction replaced by another of the same type: mutants of the compiled module. */
import { readFileSync } from 'node:fs';
import { projectPath } from '../support/project.ts';

/** SIMD instructions by what a mutant has instead, as they follow the prefix 0xfd; both have the same operands and result. */
const MUTATIONS = {
  /** The relaxed product of i8 by seven bits becomes i8x16.add. */
  relaxed: { from: [0x92, 0x02], to: [0xee, 0x00] },
  /** The relaxed dot product that adds becomes the selection of bits by a mask. */
  dot: { from: [0x93, 0x02], to: [0xd2, 0x00] },
} as const;

const PREFIX = 0xfd;
const [EXPORTS, CODE] = [7, 10];

/** A function's body within the module, and the name by which it is exported. */
interface Body {
  readonly at: number;
  readonly end: number;
  readonly name: string | undefined;
}

/** Reads sizes and indices of a module, which are LEB128. */
class Reader {
  at: number;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array, at: number) {
    this.#bytes = bytes;
    this.at = at;
  }

  byte(): number {
    return this.#bytes[this.at++]!;
  }

  number(): number {
    let value = 0;
    for (let shift = 0; ; shift += 7) {
      const byte = this.byte();
      value |= (byte & 127) << shift;
      if (byte < 128) return value >>> 0;
    }
  }

  text(): string {
    const length = this.number();
    this.at += length;
    return Buffer.from(this.#bytes.subarray(this.at - length, this.at)).toString();
  }
}

function bodiesOf(bytes: Uint8Array): Body[] {
  const names = new Map<number, string>();
  const reader = new Reader(bytes, 8);
  const bodies: Body[] = [];
  while (reader.at < bytes.length) {
    const [section, size] = [reader.byte(), reader.number()];
    const end = reader.at + size;
    const count = section === EXPORTS || section === CODE ? reader.number() : 0;
    for (let i = 0; i < count; i++) {
      if (section === EXPORTS) {
        const [name, kind, index] = [reader.text(), reader.byte(), reader.number()];
        if (kind === 0) names.set(index, name);
      } else {
        const length = reader.number();
        // The kernels import a memory and no function, so that indices of functions count bodies.
        bodies.push({ at: reader.at, end: reader.at + length, name: names.get(i) });
        reader.at += length;
      }
    }
    reader.at = end;
  }
  return bodies;
}

/** Returns one mutant of the kernels with relaxed SIMD for each instruction of `kind` in a function that `isMeant` names. */
export function mutantsOf(
  kind: keyof typeof MUTATIONS,
  isMeant: (name: string) => boolean,
): (() => WebAssembly.Module)[] {
  const bytes = readFileSync(projectPath('kernels/wasm/kernels_relaxed.wasm'));
  const { from, to } = MUTATIONS[kind];
  return bodiesOf(bytes)
    .filter(({ name = '' }) => isMeant(name))
    .flatMap(({ at, end }) => {
      const found: number[] = [];
      for (let i = at; i < end; i++)
        if (bytes[i] === PREFIX && bytes[i + 1] === from[0] && bytes[i + 2] === from[1]) found.push(i + 1);
      return found;
    })
    .map((at) => () => {
      const mutant = Uint8Array.from(bytes);
      mutant.set(to, at);
      return new WebAssembly.Module(mutant);
    });
}
