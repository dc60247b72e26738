/** How the engines of a local cluster divide devices, cores and models among themselves. */
import { availableCores } from '../../shared/base/cpu_quota.ts';
import { ConfigError } from '../../shared/base/options.ts';
import type { ClusterConfig } from './tables.ts';

type EngineRole = 'prefill' | 'decode';

/** Divides devices, cores and models among the engines of a local cluster, and returns the flags of each engine. */
export class EngineDivision {
  /** Paths of the models. Each model has the configured number of engines of each role. */
  readonly models: readonly string[];
  readonly #config: ClusterConfig;
  /** The device that `auto` stands for on this machine. */
  readonly #auto: string;

  private constructor(config: ClusterConfig, auto: string) {
    this.#config = config;
    this.models = config.model.split(',');
    this.#auto = auto;
  }

  /**
   * Creates the division, and looks for adapters when `auto` must be resolved. @throws ConfigError when prefill and decode compute on
   * different kinds of devices and `--weights` is `auto`.
   */
  static async of(config: ClusterConfig): Promise<EngineDivision> {
    const [prefill, decode] = [deviceOf(config, 'prefill'), deviceOf(config, 'decode')];
    // The weight format that `auto` selects depends on the kind of device.
    if (config.weights === 'auto' && config.prefill > 0 && (prefill === 'wasm') !== (decode === 'wasm'))
      throw new ConfigError(`prefill on ${prefill} and decode on ${decode} need one weight format: add --weights f16`);
    // Looking for adapters takes a moment, and matters only where the devices differ.
    const isAsked = prefill !== decode && (prefill === 'auto' || decode === 'auto');
    if (!isAsked) return new EngineDivision(config, 'auto');
    const { autoDevice } = await import('../../shared/engine/open_device.ts');
    return new EngineDivision(config, (await autoDevice()).device);
  }

  /**
   * Returns the path of an instance's model: the first N instances of a role serve the first model, the next N the second. `name` ends
   * with the instance's number, from 1.
   */
  modelOf(role: EngineRole, name: string): string {
    const index = Math.floor((numberOf(name) - 1) / Math.max(1, this.#config[role]));
    return this.models[index] ?? this.#config.model;
  }

  flagsOf(role: EngineRole, name: string): string[] {
    const { threads, lose_device_after_steps: steps } = this.#config;
    const device = this.#config[`${role}_device`];
    // The second instance of a role loses its device after twice as many steps, so that not all are gone at once.
    const loseAfter = steps * numberOf(name);
    return [
      ...(device === '' ? [] : ['--device', device]),
      ...(this.#isMixed() ? ['--mix-numerics'] : []),
      ...['--device-sharing', String(this.#numSharing(role)), '--threads', String(threads || this.#coresEach())],
      ...(loseAfter > 0 ? ['--lose-device-after-steps', String(loseAfter)] : []),
    ];
  }

  /**
   * Returns the threads of one engine: the cores, divided by the number of engines that may compute on them. An engine on `auto`
   * counts.
   */
  #coresEach(): number {
    const onCores = (role: EngineRole): number =>
      deviceOf(this.#config, role).startsWith('webgpu') ? 0 : this.#config[role];
    const numEngines = this.models.length * (onCores('prefill') + onCores('decode'));
    return Math.max(1, Math.floor(availableCores() / Math.max(1, numEngines)));
  }

  /**
   * Whether prefill and decode engines are on different devices. Their user expects them to share blocks, so they get
   * `--mix-numerics`.
   */
  #isMixed(): boolean {
    const resolved = (role: EngineRole): string => {
      const device = deviceOf(this.#config, role);
      return device === 'auto' ? this.#auto : device;
    };
    return this.#config.prefill > 0 && resolved('prefill') !== resolved('decode');
  }

  /** Engines on this role's device. */
  #numSharing(role: EngineRole): number {
    const own = deviceOf(this.#config, role);
    const onIt = (other: EngineRole): number => (deviceOf(this.#config, other) === own ? this.#config[other] : 0);
    return Math.max(1, this.models.length * (onIt('prefill') + onIt('decode')));
  }
}

function deviceOf(config: ClusterConfig, role: EngineRole): string {
  return config[`${role}_device`] || config.device;
}

function numberOf(name: string): number {
  return Number(/\d+$/.exec(name)?.[0] ?? 1);
}
