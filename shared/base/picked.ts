/** Some properties of an object, by their names. */

/** Returns the names of an object's properties, for one that has no others than its type. */
export function keysOf<T extends object>(object: T): readonly (keyof T)[] {
  return Object.keys(object) as (keyof T)[];
}

/** Returns the properties of an object that have these names, in the order of the names. */
export function picked<T extends object, K extends keyof T>(object: T, names: readonly K[]): Pick<T, K> {
  return Object.fromEntries(names.map((name) => [name, object[name]])) as Pick<T, K>;
}
