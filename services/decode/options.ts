export { engineOptions as options } from '../../shared/node/options.ts';
