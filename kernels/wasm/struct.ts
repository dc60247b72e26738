/**
 * Records of numbers in the shared memory that kernels read by name: four bytes a field, in order. `as/` has an unmanaged class with the
 * same name and the same fields, and a test compares the two.
 */

/** Pointers, sizes and flags are u32. */
type Scalar = 'u32' | 'i32' | 'f32';

/** Layout of a record in the shared memory; kernels read its fields by name. */
export interface Struct<Values> {
  readonly name: string;
  readonly fields: Readonly<Record<string, Scalar>>;
  readonly bytes: number;
  /** Writes the struct's fields at byte `at`; other fields of `values` are ignored. */
  write(memory: DataView, at: number, values: Values): void;
}

/** Returns a struct of these fields, four bytes each, in order, with their offsets in bytes. */
export function struct<const Fields extends Readonly<Record<string, Scalar>>>(
  name: string,
  fields: Fields,
): Struct<Readonly<Record<keyof Fields, number>>> & { readonly offsets: Readonly<Record<keyof Fields, number>> } {
  const entries = Object.entries(fields);
  return {
    name,
    fields,
    bytes: 4 * entries.length,
    offsets: Object.fromEntries(entries.map(([field], i) => [field, 4 * i])) as Record<keyof Fields, number>,
    write: (memory: DataView, at: number, values: Readonly<Record<string, number>>) => {
      entries.forEach(([field, scalar], i) => {
        if (scalar === 'f32') memory.setFloat32(at + 4 * i, values[field]!, true);
        else memory.setUint32(at + 4 * i, values[field]!, true);
      });
    },
  };
}
