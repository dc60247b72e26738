/** Sampling on the host for devices that return whole rows of logits: by the kernel of the wasm device, which knows no other device. */
export { HostRowSampler } from '../wasm/row_sampler.ts';
