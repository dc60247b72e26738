/** From a model folder to an engine-ready executable: device, program, weights, format. */
import type { Clock } from '../base/clock.ts';
import { DeviceError, type Device, type Executable } from '../../kernels/device.ts';
import type { Program } from '../../kernels/program.ts';
import { formatDigest, type Format } from '../kv/format.ts';
import { LAYOUT_VERSION } from '../kv/kv_spec.ts';
import type { RecordLayout } from '../kv/record.ts';
import type { Model } from '../model/model_folder.ts';
import { openModel } from '../model/open_model.ts';
import { leftOut } from '../model/left_out.ts';
import type { ModelWeights } from '../model/weights.ts';
import type { StepTimes } from './step_budget.ts';
import type { ModelShape } from '../model/model_shape.ts';
import { shapeOf } from './architectures/registry.ts';
import { ropesServed } from './architectures/decoder_rope.ts';
import type { LoadModelOptions } from './load_options.ts';
import { LoadPlanner } from './load_plan.ts';
import { refuseWithoutRoom } from './model_fit.ts';
import { autoDevice, openDevice } from './open_device.ts';
import { rowsReadFor, weightSource } from './transposed_rows.ts';
import { warmUp } from './warm_up.ts';

/** A model that is ready to run: its device, executable, KV layout and sizes. */
export interface LoadedModel {
  readonly folder: Model;
  readonly shape: ModelShape;
  readonly device: Device;
  /** For people: the device, and why it is not the one that `auto` would have liked. */
  readonly description: string;
  readonly executable: Executable;
  readonly format: Format;
  readonly layout: RecordLayout;
  readonly numBlocks: number;
  readonly maxModelLen: number;
  /** Step times measured by the warm-up on this device; the step budget starts with them. */
  readonly firstSteps: readonly StepTimes[];
}

type OnProgress = (doneBytes: number, totalBytes: number) => void;

/**
 * Loads a model, and with `device` 'auto' chooses the device: a hardware adapter if it can run the model, else wasm. @throws
 * ModelError, DeviceError before anything listens.
 */
export async function loadModel(
  options: LoadModelOptions,
  onProgress?: OnProgress,
  clock?: Pick<Clock, 'nowMs'>,
): Promise<LoadedModel> {
  if (options.device !== 'auto') return loadOn(options.device, '', options, clock, onProgress);
  const { device, reason } = await autoDevice();
  if (device === 'wasm') return loadOn('wasm', '', options, clock, onProgress);
  try {
    return await loadOn(device, '', options, clock, onProgress);
  } catch (error) {
    // The adapter or its kernels are not enough for this model.
    if (!(error instanceof DeviceError)) throw error;
    const { message } = error;
    return loadOn('wasm', ` although ${reason}: ${message}`, options, clock, onProgress).catch((cause: unknown) => {
      if (!(cause instanceof DeviceError)) throw cause;
      throw new DeviceError(`on wasm, ${cause.message}; on ${device}, ${message}`, { cause });
    });
  }
}

/** Loads a model on the named device; `why` is appended to the device's description. */
async function loadOn(
  deviceName: string,
  why: string,
  options: LoadModelOptions,
  clock: Pick<Clock, 'nowMs'> | undefined,
  onProgress: OnProgress | undefined,
): Promise<LoadedModel> {
  const folder = await openModel(options.modelPath);
  const device = await openDevice({ ...options, device: deviceName, nowMs: clock && (() => clock.nowMs()) });
  const shape = shapeOf(folder);
  const { blockSize, kvDtype } = options;
  const weights = await folder.openWeights();
  try {
    const planner = new LoadPlanner({ folder, shape, weights, device });
    await refuseWithoutRoom(planner, options, device);
    const { maxModelLen, held, spec, load } = planner.plan(options);
    await device.checkRows(held.program, load);
    if (device.fault !== undefined)
      throw new DeviceError(
        `${device.description}: ${device.fault}; use another --device, or another version of its driver`,
      );
    const executable = await device.load(held.program, weightSource(weights), {
      ...load,
      nowMs: clock && (() => clock.nowMs()),
      ...(onProgress ? { onProgress: progressOf(held.program, weights, onProgress) } : {}),
    });
    const { numBlocks } = executable;
    const firstSteps = await warmUp(executable, {
      ...options,
      maxModelLen,
      numBlocks,
      nowMs: clock && (() => clock.nowMs()),
    });
    const numericsClass = `${device.numericsClass}/w-${held.label}`;
    const format: Format = {
      model: weights.fingerprint(JSON.stringify({ ...shape, ropes: ropesServed(shape.ropes, maxModelLen) })),
      weightFormat: held.label,
      kvDtype,
      layoutVersion: LAYOUT_VERSION,
      blockSize,
      // With mix_numerics, different numerics classes share KV blocks; different revisions of the kernels do not.
      numerics: options.isMixingNumerics ? device.mixedNumericsClass : numericsClass,
      kv: spec.digest,
    };
    const layout: RecordLayout = { format: formatDigest(format), numericsClass, spec };
    const clauses = [`${device.description}; weights: ${held.changes}${why}`, ...device.notes];
    const description = [...clauses, ...leftOut(weights.shapes.keys())].join('; ');
    return { folder, shape, device, description, executable, format, layout, numBlocks, maxModelLen, firstSteps };
  } finally {
    await weights.close();
  }
}

/** Returns a progress callback that counts bytes of the model's files, whatever their storage format on the device. */
function progressOf({ weights: specs }: Program, weights: ModelWeights, onProgress: OnProgress): () => void {
  const parts = Object.values(specs).flatMap((spec) => spec.parts);
  const totalBytes = parts.reduce((sum, part) => sum + weights.storedBytes(rowsReadFor(part)), 0);
  return () => {
    onProgress(Math.min(weights.doneBytes, totalBytes), totalBytes);
  };
}
