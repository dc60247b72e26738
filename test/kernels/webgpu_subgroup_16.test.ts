/** The webgpu device conforms with subgroups of 16, the fast kernel set. Budget: 90 s. */
import { webgpuConformance } from './webgpu_conformance.ts';

webgpuConformance(512);
