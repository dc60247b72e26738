/**
 * `node dist/test/support/vanishing_library.js` in a copy of the build: loads a model with native products and two threads, and removes the
 * library of the native kernels while weights are read, as who replaces the package does. Prints why the load failed.
 */
import { rmSync } from 'node:fs';
import { loadModel } from '../../shared/engine/load_model.ts';
import { loadDefaults } from './reference_loop.ts';
import { projectPath } from './project.ts';

const library = projectPath(`dist/kernels/native/${process.platform}-${process.arch}.so`);
const options = { ...loadDefaults, modelPath: projectPath('config/models/harbour'), numThreads: 3 };
try {
  await loadModel({ ...options, products: 'native' }, () => {
    rmSync(library, { force: true });
  });
  process.stdout.write('it was loaded\n');
} catch (error) {
  process.stdout.write(`${(error as Error).message}\n`);
}
