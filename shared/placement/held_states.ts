/**
 * Recurrent states of a hybrid model in a snapshot: a prefix can be used up to a block at whose end a state is held; an instance starts
 * without a fetch only after a state of its own.
 *
 *   held blocks   ████████████████████████████░░░░     up to `state.blocks` they are of use: a state is held at its end
 *   an instance   ████████████████                      its own last state; its blocks after serve others, and itself with a fetched state
 */
import type { BlockHash } from '../kv/block_key.ts';
import { stateHashOf } from '../kv/record.ts';
import type { Source } from '../protocol/messages.ts';
import { coveredTo, deviceMatchOf, matchesOf } from './fetch_plan.ts';
import type { ClusterSnapshot, HeldSnapshot, Placement, Question, StateSnapshot } from './policy.ts';

type Holder = HeldSnapshot['holders'][number];

/** Block ends that are searched backwards for the newest state, and further ones for each instance's own newest state. */
const MAX_LOOKS = 1_024;
const MAX_OWN_LOOKS = 128;

/** The usable part of a prefix. */
interface UsablePrefix {
  readonly ranges: HeldSnapshot[];
  readonly state: StateSnapshot | undefined;
}

/**
 * Returns the ranges up to the last state that is held, where a holder counts as a prefix of its own only up to its own last state.
 * `holdersOf` returns the holders of the state at the end of a block, by the state's key; `bytes`: size of a state record.
 */
export function usablePrefix(
  ranges: readonly HeldSnapshot[],
  hashes: readonly BlockHash[],
  bytes: number,
  holdersOf: (key: bigint) => readonly Holder[],
): UsablePrefix {
  const covered = Math.min(hashes.length, coveredTo(ranges, 0));
  const own = new Map<string, number>();
  const onDevice = new Map<string, number>();
  let state: StateSnapshot | undefined;
  const numHolders = matchesOf(ranges).size;
  for (let blocks = covered, looks = 0; blocks > 0 && looks < MAX_LOOKS; blocks--, looks++) {
    if (state && (own.size >= numHolders || state.blocks - blocks > MAX_OWN_LOOKS)) break;
    const hash = hashes[blocks - 1];
    const holders = hash ? holdersOf(stateHashOf(hash).key) : [];
    if (holders.length === 0) continue;
    state ??= { blocks, holders, bytes };
    for (const { id, isOnDevice } of holders) {
      if (!own.has(id)) own.set(id, blocks);
      if (isOnDevice && !onDevice.has(id)) onDevice.set(id, blocks);
    }
  }
  if (!state) return { ranges: [], state };
  return { ranges: split(ranges, state.blocks, own, onDevice), state };
}

/**
 * Cuts ranges at `end` and at each holder's last own state. After its last state a holder still serves blocks to others, but under another
 * id, so that it does not count as its own prefix; `isOnDevice` is cleared after its last state on the device.
 */
function split(
  ranges: readonly HeldSnapshot[],
  end: number,
  own: ReadonlyMap<string, number>,
  onDevice: ReadonlyMap<string, number>,
): HeldSnapshot[] {
  const cuts = [...new Set([...own.values(), ...onDevice.values(), end])].sort((a, b) => a - b);
  return ranges.flatMap((range): HeldSnapshot[] => {
    const last = Math.min(range.end, end);
    const inside = cuts.filter((cut) => cut > range.start && cut < last);
    const bounds = [range.start, ...inside, ...(last > range.start ? [last] : [])];
    return bounds.slice(1).map((to, i) => ({
      start: bounds[i] ?? range.start,
      end: to,
      holders: range.holders.map((holder) => {
        const isOnDevice = holder.isOnDevice && to <= (onDevice.get(holder.id) ?? 0);
        const id = to <= (own.get(holder.id) ?? 0) ? holder.id : `${holder.id} without a state`;
        return isOnDevice === holder.isOnDevice && id === holder.id ? holder : { ...holder, id, isOnDevice };
      }),
    }));
  });
}

/** Returns the placement with the sources of the states without which the blocks that it fetches are of no use. */
export function withStateSources(
  placement: Placement,
  { numBlocks }: Pick<Question, 'numBlocks'>,
  { ranges, state, tieBreak }: Pick<ClusterSnapshot, 'ranges' | 'state' | 'tieBreak'>,
  addressOf: (id: string) => string | undefined,
): Placement {
  const heldState = (id: string, sources: readonly Source[]): readonly Source[] => {
    if (!state || sources.at(-1)?.end !== state.blocks || deviceMatchOf(ranges, id) >= state.blocks) return [];
    const holder = holderOf(state, addressOf(id), tieBreak);
    return holder === undefined ? [] : [sourceOfState(holder, state.blocks, false)];
  };
  const { decode, prefill, decodeSources, prefillSources } = placement;
  const last = decodeSources.at(-1);
  const isComputed = last?.isComputing === true && last.end === numBlocks;
  const ofDecode = isComputed ? [sourceOfState(last.address, numBlocks, true)] : heldState(decode, decodeSources);
  const ofPrefill = prefill === undefined ? [] : heldState(prefill, prefillSources);
  // The first source of a block is blamed when it is missing, so the state's source comes first.
  return {
    ...placement,
    decodeSources: [...ofDecode, ...decodeSources],
    prefillSources: [...ofPrefill, ...prefillSources],
  };
}

function sourceOfState(address: string, end: number, isComputing: boolean): Source {
  return { address, start: end - 1, end, isComputing, isState: true };
}

/** Returns the address of a holder of the state: the instance itself, else one that has it in memory. */
function holderOf({ holders }: StateSnapshot, own: string | undefined, tieBreak: number): string | undefined {
  if (holders.some(({ address }) => address === own)) return own;
  const inMemory = holders.filter(({ isInMemory }) => isInMemory);
  const choice = inMemory.length > 0 ? inMemory : holders;
  return choice[tieBreak % choice.length]?.address;
}
