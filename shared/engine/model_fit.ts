/**
 * Refuses a model that does not fit before any of its weights is read: with what it needs, what there is, and the options with which
 * it would fit. Options are found by planning the load with them, so none is named that would not help.
 */
import { DeviceError, type Device } from '../../kernels/device.ts';
import { totalNeeds, type MemoryNeeds, type MemoryRoom } from '../../kernels/memory_needs.ts';
import { numStateSlotsOf } from '../../kernels/state_slots.ts';
import type { LoadModelOptions } from './load_options.ts';
import type { LoadPlan, LoadPlanner } from './load_plan.ts';

/** Formats to which matrices may be made smaller, by descending size. */
const SMALLER_FORMATS = ['f16', 'int8', 'int4'] as const;
/**
 * Tokens of context to which a served context is shortened rather than weights made smaller, and the shortest to which it is shortened
 * at all.
 */
const GOOD_CONTEXT = 4_096;
const SHORTEST_CONTEXT = 256;
/** Least slots with which a hybrid model is loaded. */
const LEAST_SLOTS = 2;

/** Device whose memory is compared. */
export type SizedDevice = Pick<Device, 'kind' | 'needs' | 'room'>;

/** A load that was planned, what it needs and what there is. */
interface Fit {
  readonly options: LoadModelOptions;
  readonly plan: LoadPlan;
  readonly needs: MemoryNeeds;
  readonly room: MemoryRoom;
}

/** Options that differ from the user's own, with their flags. */
interface Change {
  readonly flags: readonly string[];
  readonly options: LoadModelOptions;
}

/**
 * Compares what a load needs with what the device has. @throws DeviceError, with the sizes and the options that would make it fit, when
 * it does not fit; or with the device's own reason when its memory must be known and cannot be found out.
 */
export async function refuseWithoutRoom(
  planner: LoadPlanner,
  options: LoadModelOptions,
  device: SizedDevice,
): Promise<void> {
  const fit = await fitOf(planner, options, device);
  const shortage = shortageOf(fit);
  if (shortage === undefined) return;
  throw new DeviceError(
    `the model does not fit: ${needsText(fit)}, and ${shortage}; ${await new Remedies(planner, device).of(fit)}`,
  );
}

async function fitOf(planner: LoadPlanner, options: LoadModelOptions, device: SizedDevice): Promise<Fit> {
  const plan = planner.plan(options);
  const [needs, room] = [device.needs(plan.held.program, plan.load), await device.room(plan.load.numBlocks)];
  return { options, plan, needs, room };
}

/** Returns a clause that says what there is too little of; undefined when the load fits. */
function shortageOf({ plan, needs, room }: Fit): string | undefined {
  const { numBlocks, kv } = plan.load;
  if (totalNeeds(needs) > room.total) return `${room.whose} ${sizeText(room.total)}`;
  if (needs.obstacle !== undefined) return needs.obstacle;
  if (needs.weights > room.free) return `only ${sizeText(room.free)} are free at the moment`;
  if (needs.kv > room.kv) return `KV may take ${sizeText(room.kv)} on this device`;
  if (numBlocks.min > needs.mostBlocks)
    return `a buffer of this adapter holds a layer's KV of ${needs.mostBlocks * kv.blockSize} tokens`;
  if (numStateSlotsOf(plan.load) > needs.mostSlots)
    return `a buffer of this adapter holds a layer's states in ${needs.mostSlots} slots`;
  return undefined;
}

function needsText({ plan, needs }: Fit): string {
  const { load, maxModelLen, held } = plan;
  const { kv, numBlocks, maxBlocksPerSequence } = load;
  const ofOne = sizeText(maxBlocksPerSequence * kv.blockBytes);
  const all = numBlocks.min === maxBlocksPerSequence ? '' : ` (${numBlocks.min} blocks: ${sizeText(needs.kv)})`;
  const slots = numStateSlotsOf(load);
  return [
    `weights take ${sizeText(needs.weights)} as ${held.label}`,
    `KV of one sequence of ${maxModelLen} tokens ${ofOne}${all}`,
    ...(slots > 0 ? [`recurrent states ${sizeText(needs.states)} in ${slots} slots`] : []),
    `other buffers ${sizeText(needs.other)}`,
    `all together ${sizeText(totalNeeds(needs))}`,
  ].join(', ');
}

/** Finds the options with which a load would fit. */
class Remedies {
  readonly #planner: LoadPlanner;
  readonly #device: SizedDevice;

  constructor(planner: LoadPlanner, device: SizedDevice) {
    this.#planner = planner;
    this.#device = device;
  }

  /** Returns a clause with the options that make the load fit; without any, the memory that the least load takes. */
  async of(fit: Fit): Promise<string> {
    const unbounded = await fit.room.unbounded?.();
    if (unbounded && Number.isFinite(unbounded.total) && shortageOf({ ...fit, room: unbounded }) === undefined)
      return `it fits with --device-memory ${flagSize(totalNeeds(fit.needs))}`;
    const formats = await this.#smallerFormats(fit);
    for (const leastTokens of [GOOD_CONTEXT, SHORTEST_CONTEXT]) {
      for (const [format, withFormat] of [['', fit] as const, ...formats]) {
        const flags = format === '' ? [] : [`--weights ${format}`];
        if (shortageOf(withFormat) === undefined) return `it fits with ${flags.join(' ')}`;
        for (const change of shrunk(withFormat, flags, this.#device, leastTokens))
          if (shortageOf(await this.#fit(change)) === undefined) return `it fits with ${change.flags.join(' ')}`;
      }
    }
    return this.#least(formats.at(-1) ?? ['', fit]);
  }

  #fit({ options }: Change): Promise<Fit> {
    return fitOf(this.#planner, options, this.#device);
  }

  /** Returns the load with each format in which its weights take less, by descending size. */
  async #smallerFormats({ options, needs }: Fit): Promise<[string, Fit][]> {
    const found: [string, Fit][] = [];
    let { weights } = needs;
    for (const weightFormat of SMALLER_FORMATS) {
      const fit = await this.#fit({ flags: [], options: { ...options, weightFormat } });
      if (fit.needs.weights >= weights) continue;
      found.push([weightFormat, fit]);
      ({ weights } = fit.needs);
    }
    return found;
  }

  async #least([format, fit]: readonly [string, Fit]): Promise<string> {
    const { blockSize } = fit.options;
    const numBlocks = Math.min(fit.plan.load.numBlocks.min, Math.ceil(SHORTEST_CONTEXT / blockSize));
    const flags = format === '' ? [] : [`--weights ${format}`];
    const change = withSlots(withBlocks({ flags, options: fit.options }, numBlocks, this.#device), fit, LEAST_SLOTS);
    const { needs } = await this.#fit(change);
    const least = `${sizeText(totalNeeds(needs))}${change.flags.length > 0 ? `, with ${change.flags.join(' ')}` : ''}`;
    const obstacle = needs.obstacle === undefined ? '' : `, where ${needs.obstacle}`;
    return `no option makes it fit: the least that it takes is ${least}${obstacle}; use a smaller model or a device with more memory`;
  }
}

/** Returns the changes of a load's KV blocks and state slots that may make it fit, and keep `leastTokens` of context. */
function shrunk(fit: Fit, flags: readonly string[], device: SizedDevice, leastTokens: number): Change[] {
  const { options, plan, needs, room } = fit;
  const { numBlocks, kv, state } = plan.load;
  if (needs.weights > room.free || needs.obstacle !== undefined) return [];
  const overBytes = Math.max(0, totalNeeds(needs) - room.total);
  const unchanged = { flags, options };
  const fewerBlocks = (from: Change, bytes: number): Change[] => {
    const most = Math.floor(Math.min(needs.kv - bytes, room.kv) / Math.max(1, kv.blockBytes));
    const count = Math.min(most, needs.mostBlocks);
    const isEnough = count * kv.blockSize >= Math.min(leastTokens, plan.maxModelLen);
    return isEnough && count < numBlocks.min ? [withBlocks(from, count, device)] : [];
  };
  if (!state) return fewerBlocks(unchanged, overBytes);
  const fitting = Math.min(needs.mostSlots, Math.floor((needs.states - overBytes) / state.slotBytes));
  const saved = needs.states - LEAST_SLOTS * state.slotBytes;
  return [
    ...fewerBlocks(unchanged, overBytes),
    ...(fitting >= LEAST_SLOTS ? [withSlots(unchanged, fit, fitting)] : []),
    ...fewerBlocks(withSlots(unchanged, fit, LEAST_SLOTS), Math.max(0, overBytes - saved)),
  ];
}

/** A GPU's automatic blocks follow the context; elsewhere the number of blocks bounds the context. */
function withBlocks({ flags, options }: Change, numBlocks: number, { kind }: SizedDevice): Change {
  const tokens = numBlocks * options.blockSize;
  return kind === 'webgpu' && options.numBlocks === 0
    ? { flags: [...flags, `--max-model-len ${tokens}`], options: { ...options, maxModelLen: tokens } }
    : { flags: [...flags, `--kv-blocks ${numBlocks}`], options: { ...options, numBlocks } };
}

function withSlots({ flags, options }: Change, { plan }: Fit, numStateSlots: number): Change {
  if (numStateSlots >= numStateSlotsOf(plan.load)) return { flags, options };
  return { flags: [...flags, `--state-slots ${numStateSlots}`], options: { ...options, numStateSlots } };
}

function sizeText(bytes: number): string {
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(1)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

/** Returns a size as an option takes it, rounded up. */
function flagSize(bytes: number): string {
  return bytes < 2 ** 30 ? `${Math.ceil(bytes / 2 ** 20)}MiB` : `${Math.ceil((10 * bytes) / 2 ** 30) / 10}GiB`;
}
