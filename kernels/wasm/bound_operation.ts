/** An operation bound to the addresses of its operands: plain data, made once at load, of which every thread has a copy. */
export interface BoundOperation<Fields = Readonly<Record<string, number>>> {
  readonly kind: string;
  readonly index: number;
  /** Byte offset of the operation's struct, which the kernels read. */
  readonly params: number;
  readonly fields: Fields;
}
