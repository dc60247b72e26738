/** An operation bound to the addresses of its operands: plain data, made once at load, of which every thread has a copy. */
export interface BoundOperation<Fields = Readonly<Record<string, number>>> {
  readonly kind: string;
  readonly index: number;
  /** Byte offset of the operation's struct, which the kernels read. */
  readonly params: number;
  readonly fields: Fields;
  /** Set by a thread on its own copy of a product. */
  readonly following?: Following;
}

/** Operations that run within the tasks of a product, each on what the task has just computed. */
export interface Following {
  /** Panels that no task divides. */
  readonly unit: number;
  /** Panels from one to the other that belong together, of gates and ups; 0 where there is one range. */
  readonly apart: number;
  /** Runs the operations for rows [row, rowEnd) and columns [column, columnEnd) of the product's output. */
  readonly run: (row: number, rowEnd: number, column: number, columnEnd: number) => void;
}
