// What the products of few rows share; appended to the kernels that say `uses: ['few_rows']`, with linear.wgsl.
//
//   ROWS     neighbouring outputs of a thread, which share its loads of x
//   LANES    neighbouring threads that have the same inputs of other outputs
//   COLUMNS  rows of x of a workgroup
//   NORMED   1: x is normalised on the way in (one row only)

const ROWS: u32 = 4;
const LANES: u32 = 4;
const COLUMNS: u32 = 1;
const NORMED: u32 = 0;

const OUTPUTS = LANES * ROWS;
const SUMS = OUTPUTS * COLUMNS;

// Where each column's row of x begins, in vectors. Past the last row the last one again; an expert's item may have fewer rows than there
// are columns, which are left out.
fn x_rows(first_row: u32, num_rows: u32) -> array<u32, COLUMNS> {
  var at: array<u32, COLUMNS>;
  for (var column = 0u; column < COLUMNS; column++) {
    at[column] = row_of(min(first_row + column, num_rows - 1)) * (params.x_stride / 4);
  }
  return at;
}

// A thread's outputs in the weight's slice. Past the last output, the last one again.
fn own_outputs(base: u32, first: u32) -> array<u32, ROWS> {
  var output: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    output[r] = base + min(first + r, params.outputs - 1);
  }
  return output;
}
