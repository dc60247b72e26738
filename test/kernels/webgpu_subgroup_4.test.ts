/** The webgpu device conforms with subgroups of 4, both kernel sets. Budget: 90 s. */
import { webgpuConformance } from './webgpu_conformance.ts';

webgpuConformance(128);
