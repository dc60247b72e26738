/** The version of this package, as its package.json says it. */
import { readFileSync } from 'node:fs';

/** The built file lies in dist/shared/base/, three folders below package.json. */
const { version } = JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as {
  version: string;
};

/** Version of this package, from package.json. */
export const softwareVersion = version;
