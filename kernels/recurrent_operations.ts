/**
 * Operations that keep a recurrent state from one row of a sequence to the next (layout: state_layout.ts). Strings name buffers and
 * weights.
 */

/** Bound of the steps of a state space where an operation has none: the largest f32. */
export const MOST_STEP = 3.4028234663852886e38;

/** One operation of a recurrent layer. */
export type RecurrentOperation =
  /**
   * Causal convolution of each of the first `channels` values of x over the rows of a sequence: out[r, c] = Σ_j weight[c, j] · x[r -
   * taps + 1 + j, c] (+ bias[c]), through SiLU if `isActivated`; what is before the sequence is 0. Plane 0 of the layer's state has the
   * last taps - 1 inputs, [taps - 1][channels], the oldest first. weight is [channels, taps] f32, never
   * quantised; taps is 2 to 4.
   */
  | {
      readonly kind: 'causal_conv';
      readonly x: string;
      readonly weight: string;
      readonly bias?: string;
      readonly out: string;
      readonly layer: number;
      readonly channels: number;
      readonly taps: number;
      readonly isActivated: boolean;
    }
  /**
   * The gated delta rule over the rows of a sequence. Plane 1 of the layer's state has a matrix S [key_dim][value_dim] for each value
   * head:
   *
   *   S = decay · S;  d = β · (v - Sᵀk);  S = S + k dᵀ;  out[r, head] = Sᵀq
   *
   * qkv[r, :] has key_heads · key_dim values of q, as many of k, and value_heads · value_dim of v; q and k are divided by sqrt(sum of
   * squares + epsilon), q also by sqrt(key_dim). gates[r, :] has b, then a, of each value head: β = sigmoid(b), decay = e^(-e^aLog ·
   * softplus(a + dtBias)). A key head serves consecutive value heads, or with `isTiled` value head h has key head h modulo key_heads.
   * qkv and gates are overwritten.
   */
  | {
      readonly kind: 'delta_rule';
      readonly qkv: string;
      readonly gates: string;
      readonly aLog: string;
      readonly dtBias: string;
      readonly out: string;
      readonly layer: number;
      readonly keyHeads: number;
      readonly valueHeads: number;
      readonly keyDim: number;
      readonly valueDim: number;
      readonly isTiled: boolean;
      readonly epsilon: number;
    }
  /**
   * The state space of Mamba2 over the rows of a sequence. Plane 1 of the layer's state has a matrix S [state_dim][head_dim] for each head:
   *
   *   S = decay · S + b (step · x)ᵀ;  out[r, head] = Sᵀc + skip · x
   *
   * cbx[r, :] has groups · state_dim values of c, as many of b, and heads · head_dim of x; consecutive heads share the c and b of a
   * group. steps[r, :] has a value for each head, and room for as many more: step = softplus(value + dtBias), at least `leastStep` and
   * at most `mostStep`; decay = e^(-e^aLog · step). steps is overwritten.
   */
  | {
      readonly kind: 'state_space';
      readonly cbx: string;
      readonly steps: string;
      readonly aLog: string;
      readonly dtBias: string;
      readonly skips: string;
      readonly out: string;
      readonly layer: number;
      readonly groups: number;
      readonly heads: number;
      readonly stateDim: number;
      readonly headDim: number;
      /** 0 by default, so that a step is as it is. */
      readonly leastStep?: number;
      /** The largest f32 by default. */
      readonly mostStep?: number;
    }
  /**
   * Norm of each of the `spans` spans of x[rows, spans · width], in place, with a gate: weight · rms_norm(x) · silu(gate[r, first ...]), or if
   * `isGateFirst` weight · rms_norm(x · silu(gate)). The weight is [width], or [spans · width].
   */
  | {
      readonly kind: 'gated_norm';
      readonly x: string;
      readonly gate: string;
      readonly first: number;
      readonly weight: string;
      readonly spans: number;
      readonly width: number;
      readonly epsilon: number;
      readonly isGateFirst: boolean;
    };
