/** Every thread has this of each operation, from load on. */
export interface PlacedOperation<Fields = Readonly<Record<string, number>>> {
  readonly kind: string;
  readonly index: number;
  /** Byte offset of the operation's struct, which the kernels read. */
  readonly params: number;
  readonly fields: Fields;
}
