/** The address of what is shown: `#/VIEW/ARGUMENT/...`. A link to a node, a request or a block is its address. */
import { signal } from '@preact/signals';

/** Views, in the order of their tabs. */
export const VIEWS = ['overview', 'pool', 'blocks', 'flow', 'requests', 'playground'] as const;

/** Name of a view. */
export type ViewName = (typeof VIEWS)[number];

/** Place in the page. */
export interface Route {
  readonly view: ViewName;
  readonly args: readonly string[];
}

/** Place that is shown. */
export const route = signal<Route>({ view: 'overview', args: [] });

/** Reads an address. Unknown ones lead to the overview. */
function routeOf(hash: string): Route {
  const [name, ...args] = hash.replace(/^#\/?/, '').split('/');
  const view = VIEWS.find((one) => one === name) ?? 'overview';
  return { view, args: args.filter((arg) => arg !== '').map(decoded) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Address of a place: `hrefOf('pool', 'node', name)`. */
export function hrefOf(view: ViewName, ...args: readonly string[]): string {
  return `#/${[view, ...args.map(encodeURIComponent)].join('/')}`;
}

/** Goes to a place, as a click on its link would. */
export function goTo(view: ViewName, ...args: readonly string[]): void {
  location.hash = hrefOf(view, ...args);
}

/** Follows the browser's address from now on. */
export function followAddress(): void {
  const read = (): void => {
    route.value = routeOf(location.hash);
  };
  addEventListener('hashchange', read);
  read();
}
