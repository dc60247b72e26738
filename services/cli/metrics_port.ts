/** Ports of the metrics of several processes on one machine. */

/** Returns the flags that give process number `index` of a local cluster an address of its own; none when `bind`, of `--metrics-bind`, is empty. */
export function metricsFlags(bind: string, index: number): string[] {
  if (bind === '') return [];
  const at = bind.lastIndexOf(':');
  const port = Number(bind.slice(at + 1));
  return ['--metrics-bind', `${bind.slice(0, at)}:${port === 0 ? 0 : port + index}`];
}
