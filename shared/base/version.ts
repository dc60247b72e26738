/** The version of this package, as its package.json says it. */
import { readFileSync } from 'node:fs';

/** dist/shared/base/ lies three folders below it. */
const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

/** Version of this package, from package.json. */
export const softwareVersion = version;
