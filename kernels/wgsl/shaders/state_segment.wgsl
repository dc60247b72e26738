// Segments of a step as recurrent kernels read them; appended to the kernels that say `uses: ['state_segment']`. `step` has
// step_state.ts's layout.

const NO_SLOT = 0xffffffffu;

struct StateSegment {
  first_row: u32,
  rows: u32,
  // Slot with the state before the rows, or NO_SLOT for the zero state.
  from_slot: u32,
  // Index of the saves in `step`, [rows, slot] each, and their number.
  saves_at: u32,
  num_saves: u32,
}

fn segment_at(at: u32) -> StateSegment {
  return StateSegment(step[at], step[at + 1], step[at + 2], step[at + 3], step[at + 4]);
}

// The segment with that number.
fn segment_number(number: u32) -> StateSegment {
  return segment_at(step[9] + 5 * number);
}

// The segment of a row.
fn segment_of(row: u32) -> StateSegment {
  return segment_at(step[step[10] + row]);
}
