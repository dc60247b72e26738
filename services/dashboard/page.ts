/** The store and the host of this page: one of each, for all views. */
import { browserHost } from './browser.ts';
import { Store } from './store.ts';

/** Values of the page. */
export const store = new Store();
/** Surroundings of the page. */
export const host = browserHost;
