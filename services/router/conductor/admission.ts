/** Who is let in: before anything is placed, and by numbers alone. */
import { Failure } from '../../../shared/base/failure.ts';

export interface AdmissionState {
  readonly numActive: number;
  readonly maxRequests: number;
  readonly isDraining: boolean;
}

/** @throws Failure `overloaded` */
export function admit({ numActive, maxRequests, isDraining }: AdmissionState): void {
  if (isDraining) throw new Failure('overloaded', 'this router is draining and takes nothing new');
  if (numActive >= maxRequests) {
    throw new Failure('overloaded', `${maxRequests} requests are in flight: try again later`);
  }
}
