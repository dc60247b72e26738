/** Facts of this package, from its package.json. */
import { readFileSync } from 'node:fs';

/** The built file lies in dist/shared/base/, three folders below package.json. */
const { version, peerDependencies } = JSON.parse(
  readFileSync(new URL('../../../package.json', import.meta.url), 'utf8'),
) as {
  version: string;
  peerDependencies: Readonly<Record<string, string>>;
};

/** Version of this package, from package.json. */
export const softwareVersion = version;

/** Version ranges of the packages that are installed by whoever wants what they are for, by name. */
export const optionalPackages = peerDependencies;
