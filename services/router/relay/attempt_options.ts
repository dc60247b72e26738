/** Dependencies of the attempts at a request. */
import type { Clock } from '../../../shared/base/clock.ts';
import type { Random } from '../../../shared/base/random.ts';
import type { DecodeStreams } from '../../../shared/net/decode/decode_stream.ts';
import type { Network } from '../../../shared/net/network.ts';
import type { Conductor } from '../../../shared/placement/conductor.ts';
import type { MembersView } from '../../../shared/placement/members_view.ts';
import type { LengthPredictor } from '../conductor/length_predictor.ts';
import type { MissReasons } from '../record/miss_reasons.ts';

/** Dependencies of the attempts of one model's requests. */
export interface AttemptOptions {
  /** The epoch of this router. */
  readonly router: string;
  readonly view: MembersView;
  readonly conductor: Conductor;
  readonly lengths: LengthPredictor;
  readonly network: Network;
  readonly decodes: DecodeStreams;
  readonly clock: Clock;
  readonly random: Random;
  /** Finds why prompts are computed; undefined where nobody asks. */
  readonly misses?: MissReasons | undefined;
  /** Called once for each prompt with the keys of its full blocks, two words each; undefined: nobody counts them. */
  readonly onLookup?: ((keys: Int32Array) => void) | undefined;
}
