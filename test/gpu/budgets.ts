/**
 * Limits that kernels must keep on a card, by name: the first matching pattern counts. `npm run gpu:code` fails where a kernel exceeds
 * its limits.
 */
export interface Budget {
  readonly card: 'RDNA 3' | 'Ada';
  readonly kernel: RegExp;
  readonly maxRegisters?: number;
  readonly minOccupancy?: number;
  /** Bytes that a lane has asked for before it waits: of the loop that has most of them, or of those with barriers. */
  readonly minBytesInFlight?: number;
  readonly minBytesBetweenBarriers?: number;
  /** Vector instructions of the loop over weights, for each weight. */
  readonly maxVectorPerWeight?: number;
  readonly minMatrix?: number;
}

/** Registers that a kernel may spill: none, on either card. */
export const MAX_SPILLS = 0;

export const budgets: readonly Budget[] = [
  { card: 'RDNA 3', kernel: /^matvec_ordered f16 14336 c1$/, minOccupancy: 16, maxVectorPerWeight: 1.6 },
  { card: 'RDNA 3', kernel: /^matvec_ordered int4 14336 c1$/, minOccupancy: 16, maxVectorPerWeight: 4.0 },
  { card: 'RDNA 3', kernel: /^matvec_ordered int8 14336 c1$/, minOccupancy: 16, maxVectorPerWeight: 3.9 },
  { card: 'RDNA 3', kernel: /^matvec_ordered uint4 14336 c1$/, minOccupancy: 16, maxVectorPerWeight: 4.0 },
  { card: 'RDNA 3', kernel: /^matvec int4 14336 c1$/, minOccupancy: 16, maxVectorPerWeight: 4.5 },
  { card: 'RDNA 3', kernel: /^matvec(_ordered)? /, minOccupancy: 16 },
  { card: 'RDNA 3', kernel: /^attention decode (llama 8B|qwen3 30B)/, minOccupancy: 14, minBytesBetweenBarriers: 128 },
  { card: 'RDNA 3', kernel: /^attention decode/, minBytesBetweenBarriers: 64 },
  { card: 'RDNA 3', kernel: /^attention prefill/, maxRegisters: 160 },
  { card: 'RDNA 3', kernel: /^attention_merge/, minBytesInFlight: 128 },
  { card: 'RDNA 3', kernel: /^matmul_subgroup_matrix .* 128 rows/, minMatrix: 32 },
  { card: 'RDNA 3', kernel: /^matmul_subgroup_matrix/, minMatrix: 8 },
  { card: 'Ada', kernel: /^matmul_subgroup_matrix .* 128 rows/, minMatrix: 64 },
  { card: 'Ada', kernel: /^attention decode (llama 8B|qwen3 30B)/, minBytesBetweenBarriers: 64, minOccupancy: 16 },
  { card: 'Ada', kernel: /^attention_merge/, minBytesInFlight: 64 },
];
