/** Instruction sets that the native kernels are compiled for; this module has no other content, so that commands load quickly. */
export const nativeSets = ['avx2', 'vnni256', 'avx512', 'amx'] as const;
/** Name of an instruction set that the native kernels are compiled for. */
export type NativeSet = (typeof nativeSets)[number];
