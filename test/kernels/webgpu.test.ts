/** The webgpu device conforms with subgroups of 8, both kernel sets. Not covered: subgroup matrices, which no software driver has; speed. Budget: 90 s. */
import { webgpuConformance } from './webgpu_conformance.ts';

webgpuConformance(256);
