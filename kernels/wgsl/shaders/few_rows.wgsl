// Shared part of the products of few rows; appended to the kernels whose `uses` has 'few_rows', with linear.wgsl.
//
//   ROWS     neighbouring outputs of a thread, which share its loads of x
//   LANES    neighbouring threads that multiply the same inputs for different outputs
//   COLUMNS  rows of x of a workgroup
//   NORMED   1: x is normalised on the way in (one row only)

const ROWS: u32 = 4;
const LANES: u32 = 4;
const COLUMNS: u32 = 1;
const NORMED: u32 = 0;

const OUTPUTS = LANES * ROWS;
const SUMS = OUTPUTS * COLUMNS;

// Returns the start of each column's row of x, in vectors. Columns past the last row repeat the last row; for an expert's item, the
// caller skips them.
fn x_rows(first_row: u32, num_rows: u32) -> array<u32, COLUMNS> {
  var at: array<u32, COLUMNS>;
  for (var column = 0u; column < COLUMNS; column++) {
    at[column] = row_of(min(first_row + column, num_rows - 1)) * (params.x_stride / 4);
  }
  return at;
}

// Returns a thread's outputs in the weight's slice; past the last output, the last one again.
fn own_outputs(base: u32, first: u32) -> array<u32, ROWS> {
  var output: array<u32, ROWS>;
  for (var r = 0u; r < ROWS; r++) {
    output[r] = base + min(first + r, params.outputs - 1);
  }
  return output;
}
