/** The webgpu device conforms with subgroups of 4, the kernel set that uses them. Budget: 90 s. */
import { webgpuConformance } from './webgpu_conformance.ts';

webgpuConformance(128);
