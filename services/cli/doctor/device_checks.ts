/** Checks of what can compute here, from the output of `penstock devices --json` and the device files of the system. */
import { ok, problem, warning, type Finding } from './finding.ts';

/** Part of the output of `penstock devices --json`. */
export interface DevicesMeasure {
  readonly auto: { readonly device: string; readonly reason: string };
  readonly adapters: readonly {
    readonly device: string;
    readonly name: string;
    readonly isSoftware: boolean;
    readonly notes: readonly string[];
  }[];
}

/**
 * Judges the devices. `measure` is text where `penstock devices` failed: its reason. `deviceFiles` are GPU device files of the system,
 * such as /dev/nvidia0.
 */
export function deviceFindings(measure: DevicesMeasure | string, deviceFiles: readonly string[]): Finding[] {
  if (typeof measure === 'string')
    return [
      problem(
        'devices',
        `The devices could not be listed: ${measure}.`,
        'Reinstall the GPU driver, or give engines --device wasm.',
      ),
    ];
  const { auto, adapters } = measure;
  const hardware = adapters.filter(({ isSoftware }) => !isSoftware);
  const findings = hardware.map(({ device, name, notes }) =>
    notes.length === 0
      ? ok('devices', `${device} is ${name}, and computes.`)
      : warning(
          'devices',
          `${device} is ${name}: ${notes.join('; ')}.`,
          'Update the driver of the GPU; `penstock devices` shows all that it offers.',
        ),
  );
  if (hardware.length === 0 && deviceFiles.length > 0)
    findings.push(
      warning(
        'devices',
        `The system has ${deviceFiles.join(', ')}, but no WebGPU adapter of the hardware is found.`,
        "Install the vendor's Vulkan driver; in a container pass the device (docker --gpus all with NVIDIA_DRIVER_CAPABILITIES=all, or --device /dev/dri).",
      ),
    );
  return [...findings, ok('devices', `--device auto is ${auto.device}: ${auto.reason}.`)];
}
