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
/** Tokens in a step that are tried where a larger step's buffers leave too little memory. */
const GOOD_STEPS = [512, 128] as const;
/** Least slots with which a hybrid model is loaded. */
const LEAST_SLOTS = 2;

/** Device whose memory is compared. */
export type SizedDevice = Pick<Device, 'kind' | 'needs' | 'room'>;

/** Options of a load, with the flags by which they differ from the user's own. */
interface Change {
  readonly flags: readonly string[];
  readonly options: LoadModelOptions;
}

/** A load that was planned, what it needs and what there is. */
interface Fit extends Change {
  readonly plan: LoadPlan;
  readonly needs: MemoryNeeds;
  readonly room: MemoryRoom;
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
  const remedies = new Remedies(planner, device);
  const fit = await remedies.fit({ flags: [], options });
  const shortage = shortageOf(fit);
  if (shortage === undefined) return;
  throw new DeviceError(`the model does not fit: ${needsText(fit)}, and ${shortage}; ${await remedies.of(fit)}`);
}

/** Returns a clause that says what there is too little of; undefined when the load fits. */
function shortageOf({ plan, needs, room }: Fit): string | undefined {
  const { numBlocks, kv } = plan.load;
  if (totalNeeds(needs) > room.total) return `${room.whose} ${sizeText(room.total)}`;
  if (needs.obstacle !== undefined) return needs.obstacle;
  if (needs.weights > room.free)
    return `only ${sizeText(room.free)} are free at the moment (try again when other programs have ended)`;
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

/** Plans loads with various options, and finds those with which a load would fit. */
class Remedies {
  readonly #planner: LoadPlanner;
  readonly #device: SizedDevice;
  /** Room where KV fills what is left, and where its size is fixed: asked once, so that all loads are compared with the same. */
  readonly #rooms = new Map<boolean, Promise<MemoryRoom>>();

  constructor(planner: LoadPlanner, device: SizedDevice) {
    this.#planner = planner;
    this.#device = device;
  }

  /** Plans a load, and returns what it needs and what there is. @throws DeviceError, ModelError when it cannot be planned. */
  async fit({ flags, options }: Change): Promise<Fit> {
    const plan = this.#planner.plan(options);
    const { numBlocks } = plan.load;
    const needs = this.#device.needs(plan.held.program, plan.load);
    const isFilling = numBlocks.min < numBlocks.max;
    const room = this.#rooms.get(isFilling) ?? this.#device.room(numBlocks);
    this.#rooms.set(isFilling, room);
    return { flags, options, plan, needs, room: await room };
  }

  /** Returns a clause with the options that make the load fit; without any, the memory that the least load takes. */
  async of(fit: Fit): Promise<string> {
    const unbounded = await fit.room.unbounded?.();
    if (unbounded && Number.isFinite(unbounded.total) && shortageOf({ ...fit, room: unbounded }) === undefined)
      return `it fits with --device-memory ${flagSize(totalNeeds(fit.needs))}`;
    const formats = await this.#formats(fit);
    const found = await this.#shrunk(formats);
    if (found) return fittingText(found);
    const { needs, room } = formats.at(-1) ?? fit;
    const steps = smallerSteps(fit);
    // Smaller steps cannot help where the least weights alone are too large.
    for (const change of needs.weights <= Math.min(room.total, room.free) ? steps : []) {
      const stepFound = await this.#shrunk(await this.#formats(await this.fit(change)));
      if (stepFound) return fittingText(stepFound);
    }
    return this.#least(formats.at(-1) ?? fit, steps.at(-1));
  }

  /** Returns the load, and the load with each format in which its weights take less, by descending size. */
  async #formats(fit: Fit): Promise<Fit[]> {
    const found = [fit];
    let { weights } = fit.needs;
    for (const weightFormat of SMALLER_FORMATS) {
      const flags = [...fit.flags, `--weights ${weightFormat}`];
      const smaller = await this.fit({ flags, options: { ...fit.options, weightFormat } });
      if (smaller.needs.weights >= weights) continue;
      found.push(smaller);
      ({ weights } = smaller.needs);
    }
    return found;
  }

  /** Returns the first load of those given that fits, with fewer KV blocks and state slots where need be; undefined when none does. */
  async #shrunk(fits: readonly Fit[]): Promise<Fit | undefined> {
    for (const leastTokens of [GOOD_CONTEXT, SHORTEST_CONTEXT]) {
      for (const fit of fits) {
        if (shortageOf(fit) === undefined) return fit;
        for (const change of shrunk(fit, this.#device, leastTokens)) {
          const changed = await this.fit(change);
          if (shortageOf(changed) === undefined) return changed;
        }
      }
    }
    return undefined;
  }

  /** Returns a clause with what the least load takes: that of the least format, with the smallest step. */
  async #least(fit: Fit, step: Change | undefined): Promise<string> {
    const { flags, options, plan } = fit;
    const numBlocks = Math.ceil(SHORTEST_CONTEXT / options.blockSize);
    const smallStep = step
      ? { flags: [...flags, ...step.flags], options: { ...options, chunkTokens: step.options.chunkTokens } }
      : fit;
    // A context within one block of its length is not shortened: its blocks are as many.
    const short = numBlocks < plan.load.numBlocks.min ? withBlocks(smallStep, numBlocks, this.#device) : smallStep;
    const least = await this.fit(withSlots(short, fit, LEAST_SLOTS));
    if (shortageOf(least) === undefined) return fittingText(least);
    const { needs, room } = least;
    const size = `${sizeText(totalNeeds(needs))}${least.flags.length > 0 ? `, with ${least.flags.join(' ')}` : ''}`;
    const obstacle = needs.obstacle === undefined ? '' : `, where ${needs.obstacle}`;
    const isPassing = needs.weights > room.free && totalNeeds(needs) <= room.total;
    const cure = `${isPassing ? 'free some memory, or ' : ''}use a smaller model or a device with more memory`;
    return `no smaller weights, context or steps make it fit: the least that it takes is ${size}${obstacle}; ${cure}`;
  }
}

function fittingText({ flags }: Fit): string {
  return `it fits with ${flags.join(' ')}`;
}

/** Returns the load with smaller steps, by descending size. Steps have a row for each sequence, so none is smaller than that. */
function smallerSteps({ options }: Change): Change[] {
  const sizes = new Set(GOOD_STEPS.map((chunkTokens) => Math.max(chunkTokens, options.maxNumSeqs)));
  return Array.from(sizes)
    .filter((chunkTokens) => chunkTokens < options.chunkTokens)
    .map((chunkTokens) => ({ flags: [`--chunk-tokens ${chunkTokens}`], options: { ...options, chunkTokens } }));
}

/** Returns the changes of a load's KV blocks and state slots that may make it fit, and keep `leastTokens` of context. */
function shrunk(fit: Fit, device: SizedDevice, leastTokens: number): Change[] {
  const { plan, needs, room } = fit;
  const { numBlocks, kv, state } = plan.load;
  if (needs.weights > room.free) return [];
  const least = Math.ceil(Math.min(leastTokens, plan.maxModelLen) / kv.blockSize);
  if (needs.obstacle !== undefined) return halved(fit, device, least);
  const overBytes = Math.max(0, totalNeeds(needs) - room.total);
  const fewerBlocks = (from: Change, bytes: number): Change[] => {
    const most = Math.floor(Math.min(needs.kv - bytes, room.kv) / Math.max(1, kv.blockBytes));
    const count = Math.min(most, needs.mostBlocks);
    return count >= least && count < numBlocks.min ? [withBlocks(from, count, device)] : [];
  };
  if (!state) return fewerBlocks(fit, overBytes);
  const fitting = Math.min(needs.mostSlots, Math.floor((needs.states - overBytes) / state.slotBytes));
  const saved = needs.states - LEAST_SLOTS * state.slotBytes;
  return [
    ...fewerBlocks(fit, overBytes),
    ...(fitting >= LEAST_SLOTS ? [withSlots(fit, fit, fitting)] : []),
    ...fewerBlocks(withSlots(fit, fit, LEAST_SLOTS), Math.max(0, overBytes - saved)),
  ];
}

/**
 * Returns the changes of a load that cannot be laid out: its KV blocks and state slots halved again and again, for how many can be laid
 * out is known only when it is tried.
 */
function halved(fit: Fit, device: SizedDevice, leastBlocks: number): Change[] {
  const { numBlocks } = fit.plan.load;
  const fewerBlocks = (from: Change): Change[] =>
    halvesOf(numBlocks.min, leastBlocks).map((count) => withBlocks(from, count, device));
  const numSlots = numStateSlotsOf(fit.plan.load);
  if (numSlots <= LEAST_SLOTS) return fewerBlocks(fit);
  return [
    ...fewerBlocks(fit),
    ...halvesOf(numSlots, LEAST_SLOTS).map((count) => withSlots(fit, fit, count)),
    ...fewerBlocks(withSlots(fit, fit, LEAST_SLOTS)),
  ];
}

/** Returns the halves of `count` down to `least`, and that. */
function halvesOf(count: number, least: number): number[] {
  if (count <= least) return [];
  const half = count >> 1;
  return half <= least ? [least] : [half, ...halvesOf(half, least)];
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
