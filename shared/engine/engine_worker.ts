/** The engine thread: loads the model, runs the engine's loop, and ends in order when its device goes. */
import { systemClock } from '../base/clock.ts';
import { messageOf } from '../base/failure.ts';
import { collectGarbage } from '../base/start_heap.ts';
import { workerThreads } from '../base/worker_threads.ts';
import { MaskService } from '../grammar/matcher/mask_service.ts';
import { shapeDigest } from '../model/model_shape.ts';
import { stateIntervalOf } from './engine_options.ts';
import { EngineLoop } from './engine_loop.ts';
import type { EngineWorkerData, FromEngine, ToEngine } from './engine_messages.ts';
import { loadModel, type LoadedModel } from './load_model.ts';
import type { SequenceRequest } from './sequence_request.ts';

/** Milliseconds after the loss of a device: for the running step to fail, and for Dawn's remaining answers. */
const LOST_STEP_MS = 2_000;
const LAST_ANSWERS_MS = 60;
/** Progress lines while loading: one per this many bytes is plenty. */
const PROGRESS_BYTES = 64 * 2 ** 20;

/** Calls that the control thread makes on the engine thread. */
export interface EngineMethods {
  submit: (request: SequenceRequest) => void;
  receive: (message: ToEngine) => void;
}

/**
 * Entry point of the engine thread: loads the model, emits `ready`, runs the loop, and emits `stopped` or `failed` at its end. When
 * loading fails, emits `failed` and returns methods that do nothing.
 */
export async function start(data: EngineWorkerData, emit: (message: FromEngine) => void): Promise<EngineMethods> {
  const { model: options, heartbeat, loseDeviceAfterSteps, hangAfterSteps, stateInterval, ...limits } = data;
  const startMs = systemClock.nowMs();
  let reportedBytes = 0;
  const loading = loadModel(
    options,
    (doneBytes, totalBytes) => {
      const isLast = doneBytes >= totalBytes && reportedBytes > 0 && reportedBytes < totalBytes;
      if (doneBytes - reportedBytes < PROGRESS_BYTES && !isLast) return;
      reportedBytes = doneBytes;
      emit({ kind: 'loading', doneBytes, totalBytes });
    },
    systemClock,
  );
  const model = await loading.catch((error: unknown) => {
    // Emitted before the thread ends, because a device that was opened may abort the whole process then.
    emit({ kind: 'failed', message: messageOf(error) });
    return undefined;
  });
  if (!model) return { submit: () => undefined, receive: () => undefined };
  const { executable, format, layout, numBlocks, folder, shape, device, description, firstSteps } = model;
  const grammars = openGrammars(options.modelPath, folder.config.vocabSize);
  const progress = new Int32Array(heartbeat);
  const loop = new EngineLoop({
    executable,
    layout,
    numBlocks,
    ...limits,
    stateInterval: stateInterval > 0 ? stateInterval : stateIntervalOf(layout.spec),
    firstSteps,
    grammars,
    clock: systemClock,
    emit,
    heartbeat: progress,
    chunkTokens: options.chunkTokens,
    maxNumSeqs: options.maxNumSeqs,
    onTurn: (numSteps) => {
      if (loseDeviceAfterSteps > 0 && numSteps >= loseDeviceAfterSteps) device.destroy();
      if (hangAfterSteps > 0 && numSteps >= hangAfterSteps) Atomics.wait(progress, 1, 1);
    },
  });
  // The served context is limited by the device's blocks as well as by the model.
  const maxModelLen = Math.min(model.maxModelLen, numBlocks * layout.spec.blockSize);
  const modelConfig = shapeDigest(shape);
  collectGarbage();
  const loadMs = systemClock.nowMs() - startMs;
  emit({
    kind: 'ready',
    info: {
      format,
      layout,
      numBlocks,
      maxModelLen,
      vocabSize: folder.config.vocabSize,
      modelConfig,
      modelName: folder.name,
      device: description,
      loadMs,
    },
  });
  runToEnd(loop, model, grammars).then(
    () => emit({ kind: 'stopped' }),
    (error: unknown) => emit({ kind: 'failed', message: messageOf(error) }),
  );
  return {
    submit: (request) => {
      loop.submit(request);
    },
    receive: (message) => {
      loop.receive(message);
    },
  };
}

/** Returns the masks of a model's outputs; their threads start with the first output that follows a grammar. */
function openGrammars(path: string, vocabSize: number): MaskService {
  const vocabulary = { kind: 'model', path, vocabSize } as const;
  return new MaskService({ threads: workerThreads, clock: systemClock, vocabulary });
}

/** @throws Error when the device goes, or a step fails. */
async function runToEnd(loop: EngineLoop, { device, executable }: LoadedModel, grammars: MaskService): Promise<void> {
  const running = loop.run().finally(() => grammars.close());
  const failed = running.catch(async (error: unknown) => {
    // When the device was lost, its own reason replaces the error of the failed step.
    const why = await Promise.race([device.lost, systemClock.sleep(LAST_ANSWERS_MS)]);
    if (typeof why !== 'string') throw error;
    return why;
  });
  const reason = await Promise.race([device.lost, failed]);
  if (typeof reason === 'string') {
    // Dawn owes answers to the step that ran, and aborts the process when this thread ends before they come.
    loop.receive({ kind: 'stop' });
    await Promise.race([running.catch(() => undefined), systemClock.sleep(LOST_STEP_MS)]);
    await systemClock.sleep(LAST_ANSWERS_MS);
    throw new Error(`the device was lost: ${reason}`);
  }
  await executable.close();
  device.destroy();
  await device.lost;
}
