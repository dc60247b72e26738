/**
 * The variables that Kubernetes puts into every container of a namespace for each of its Services, and Docker for each link. A Service
 * called `penstock` or `penstock-anything` makes some that begin like the variables of our options; form and value tell them apart.
 * Forms: kubernetes.io, "Discovering services", and pkg/kubelet/envvars of Kubernetes.
 */
import { isIP } from 'node:net';

const URL_VALUE = /^(tcp|udp|sctp):\/\/(\[[0-9a-fA-F:.]+\]|[^/:]+|[0-9a-fA-F:]+):\d{1,5}$/;
const PORT_VALUE = /^\d{1,5}$/;
const PROTOCOL_VALUE = /^(tcp|udp|sctp)$/i;

/**
 * Endings of the variables' names, and a check of the values they have. A name may match several forms, because a Service's own name
 * may end like one.
 */
const forms: readonly { readonly name: RegExp; readonly isValue: (value: string) => boolean }[] = [
  { name: /_SERVICE_HOST$/, isValue: (value) => isIP(value) !== 0 },
  { name: /_SERVICE_PORT(_[A-Z0-9_]+)?$/, isValue: (value) => PORT_VALUE.test(value) },
  { name: /_PORT_\d+_(TCP|UDP|SCTP)_PROTO$/, isValue: (value) => PROTOCOL_VALUE.test(value) },
  { name: /_PORT_\d+_(TCP|UDP|SCTP)_PORT$/, isValue: (value) => PORT_VALUE.test(value) },
  { name: /_PORT_\d+_(TCP|UDP|SCTP)_ADDR$/, isValue: (value) => isIP(value) !== 0 },
  { name: /_PORT(_\d+_(TCP|UDP|SCTP))?$/, isValue: (value) => URL_VALUE.test(value) },
];

/** Whether a variable has the form and the value of one that a Service makes. */
export function isServiceVariable(name: string, value: string): boolean {
  return forms.some((form) => form.name.test(name) && form.isValue(value));
}
