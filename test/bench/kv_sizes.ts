/**
 * Sizes of the KV and the recurrent state of published models: computed, through the program that serves a model, and not measured. No
 * weights are needed.
 */
import { programOf, shapeOf } from '../../shared/engine/architectures/registry.ts';
import { stateIntervalOf } from '../../shared/engine/engine_options.ts';
import { kvSpecOf } from '../../shared/engine/program_kv.ts';
import { needed, recordBytes, type KvSpec } from '../../shared/kv/kv_spec.ts';
import { publishedConfigs } from '../support/published_configs.ts';
import { folderWith } from '../support/shape_with.ts';
import { withReference, type Figure } from './figures.ts';

const BLOCK_SIZE = 32;
/** Positions for which rotary tables are made; sizes do not depend on it. */
const NUM_POSITIONS = 64;
/** A row so late that its windows end after the first block. */
const LATE_ROW = 1 << 20;
const [KIB, MIB] = [2 ** 10, 2 ** 20];
const REFERENCE = 'Llama-3.1-8B';

/** Returns the spec of the model that `config` describes as a config.json, with KV of 16 bits. @throws ModelError where it is refused. */
export function publishedSpec(config: Readonly<Record<string, unknown>>): KvSpec {
  const folder = folderWith(config);
  const shape = shapeOf(folder);
  const program = programOf(folder.config, shape, NUM_POSITIONS);
  const windows = shape.layers.map(({ window }) => window);
  return kvSpecOf(program, windows, { blockSize: BLOCK_SIZE, valueType: 'f16' });
}

/** Returns the figures of every published configuration; those of a token next to the same figure of Llama-3.1-8B. */
export function kvSizes(): Figure[] {
  const perToken = new Map<string, number>();
  return Object.entries(publishedConfigs).flatMap(([model, config]) => {
    const spec = publishedSpec(config);
    const compared = (what: string, bytes: number): Figure => {
      const kib = bytes / BLOCK_SIZE / KIB;
      const reference = perToken.get(what) ?? kib;
      perToken.set(what, reference);
      const name = `transfer/KV of ${model}/${what}`;
      const unit = 'KiB/token';
      return model === REFERENCE ? { name, value: kib, unit } : withReference(name, kib, unit, REFERENCE, reference);
    };
    const late = spec.frames.filter((frame) => needed(spec, frame, 0, LATE_ROW)).map(({ rawBytes }) => rawBytes);
    return [
      compared('values', spec.payloadBytes),
      compared('record, in a tier and on the wire', spec.slotBytes),
      compared('record on the wire, outside all windows', recordBytes(spec, late)),
      ...planeFigures(model, spec),
      ...stateFigures(model, spec),
    ];
  });
}

function planeFigures(model: string, { groups, frames }: KvSpec): Figure[] {
  const planes = groups.map(({ kind, window, planes: ofLayer, layers }): Figure => {
    const widths = ofLayer.map(({ width }) => width).join(' + ');
    const name = `transfer/KV of ${model}/${kind}${window > 0 ? ` ${window}` : ''}, ${layers.length} layers`;
    return { name, value: ofLayer.length, unit: ofLayer.length > 0 ? `planes of ${widths} values` : 'planes' };
  });
  return [...planes, { name: `transfer/KV of ${model}/frames`, value: frames.length, unit: 'per record' }];
}

function stateFigures(model: string, spec: KvSpec): Figure[] {
  if (!spec.state) return [];
  const [name, interval] = [`transfer/state of ${model}`, stateIntervalOf(spec)];
  return [
    { name: `${name}/record`, value: spec.state.slotBytes / MIB, unit: 'MiB' },
    { name: `${name}/default --state-interval`, value: interval, unit: 'blocks' },
    withReference(
      `${name}/record over the blocks of an interval`,
      spec.state.slotBytes / MIB,
      'MiB',
      'blocks',
      (interval * spec.slotBytes) / MIB,
    ),
  ];
}
