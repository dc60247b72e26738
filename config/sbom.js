/** Writes the list of all that the package brings with it (SBOM, CycloneDX) to dist/sbom.cdx.json, from the lock file. npm calls it when the package is packed. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const readJson = (file) => JSON.parse(readFileSync(join(root, file), 'utf8'));
const options = ['--sbom-format', 'cyclonedx', '--sbom-type', 'application', '--package-lock-only'];
const sbom = JSON.parse(execFileSync('npm', ['sbom', ...options], { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 }));
// npm writes the name of the folder.
sbom.metadata.component.name = readJson('package.json').name;
// Its own `--omit dev` leaves out what a package for development uses, too.
const shipped = new Set(
  Object.entries(readJson('npm-shrinkwrap.json').packages)
    .filter(([path, { dev }]) => path !== '' && !dev)
    .map(([path, { version }]) => `${path.replace(/^.*node_modules\//, '')}@${version}`),
);
sbom.components = sbom.components.filter(({ name, version }) => shipped.has(`${name}@${version}`));
const refs = new Set([sbom.metadata.component, ...sbom.components].map((one) => one['bom-ref']));
sbom.dependencies = sbom.dependencies
  .filter(({ ref }) => refs.has(ref))
  .map(({ ref, dependsOn }) => ({ ref, dependsOn: dependsOn.filter((one) => refs.has(one)) }));
mkdirSync(join(root, 'dist'), { recursive: true });
writeFileSync(join(root, 'dist/sbom.cdx.json'), `${JSON.stringify(sbom, null, 1)}\n`);
