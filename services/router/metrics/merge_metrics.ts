/** Merges the Prometheus texts of several registries: all lines of one metric must stand together. */

interface Family {
  readonly head: string[];
  readonly samples: string[];
}

/** Merges Prometheus texts of several registries into one. Samples of a metric stand together under one HELP and one TYPE line. */
export function mergeMetrics(texts: readonly string[]): string {
  const families = new Map<string, Family>();
  for (const text of texts) {
    let family: Family = { head: [], samples: [] };
    for (const line of text.split('\n')) {
      const [, kind, name] = (line.startsWith('#') && /^# (HELP|TYPE) (\S+)/.exec(line)) || [];
      if (name !== undefined) {
        const known = families.get(name);
        family = known ?? { head: [], samples: [] };
        if (!known) families.set(name, family);
        if (!family.head.some((one) => one.startsWith(`# ${kind} `))) family.head.push(line);
      } else if (line !== '') family.samples.push(line);
    }
  }
  return [...families.values()].map(({ head, samples }) => `${[...head, ...samples].join('\n')}\n`).join('\n');
}
