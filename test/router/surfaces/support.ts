/** The surfaces of a router without a cluster. */
import { Surfaces } from '../../../services/router/api/surfaces.ts';
import { surfaces } from '../../../services/router/surfaces/registry.ts';
import type { SurfaceHost } from '../../../services/router/api/surface.ts';
import type { ErrorForm } from '../../../services/router/api/errors.ts';
import { SimulatedClock } from '../../sim/simulated_clock.ts';

/** Parts of a router that has no cluster. */
export const host = { clock: new SimulatedClock() } as unknown as SurfaceHost;

const opened = new Surfaces(surfaces, host);

/** Returns the form of the errors of a path, which may have a query. */
export function errorFormOf(url: string): ErrorForm {
  return opened.errorFormOf(url);
}
