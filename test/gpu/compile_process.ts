/** Compiles the WGSL files that it is given on the card that its environment plays; ends without ending the device, which would crash. */
import { readFileSync, writeSync } from 'node:fs';
import { create, globals } from 'webgpu';
import { MARK } from './machine_code.ts';

Object.assign(globalThis, globals);
const toggles = 'allow_unsafe_apis,vulkan_enable_f16_on_nvidia,disable_robustness,disable_workgroup_init';
const gpu = create(['backend=vulkan', `enable-dawn-features=${toggles}`]);
const adapter = await gpu.requestAdapter();
const print = (message: string): void => {
  // At once, as the driver writes.
  writeSync(2, `ERROR ${message}\n`);
};
if (!adapter) print('there is no adapter');
else {
  const wanted = ['shader-f16', 'subgroups', 'subgroup-size-control', 'chromium-experimental-subgroup-matrix'];
  const { maxComputeWorkgroupStorageSize } = adapter.limits;
  const device = await adapter.requestDevice({
    requiredFeatures: wanted.filter((name) => adapter.features.has(name)) as GPUFeatureName[],
    requiredLimits: { maxComputeWorkgroupStorageSize },
  });
  for (const path of process.argv.slice(2)) {
    writeSync(2, `${MARK}${path}\n`);
    const module = device.createShaderModule({ code: readFileSync(path, 'utf8') });
    for (const { type, lineNum, message } of (await module.getCompilationInfo()).messages)
      if (type === 'error') print(`line ${lineNum}: ${message}`);
    device.pushErrorScope('validation');
    device.createComputePipeline({ layout: 'auto', compute: { module } });
    const error = await device.popErrorScope();
    if (error) print(error.message);
  }
}
process.kill(process.pid, 'SIGKILL');
