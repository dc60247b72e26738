/** The view Requests: the list of requests, or one of them with all that is known of it. */
import type { VNode } from 'preact';
import { RequestList } from './requests/request_list.tsx';
import { RequestPage } from './requests/request_page.tsx';

/** The view Requests. @param args parts of the address after the view's name: none for the list, or the id of a request. */
export function Requests({ args }: { readonly args: readonly string[] }): VNode {
  const id = args[0];
  return id === undefined ? <RequestList /> : <RequestPage key={id} id={id} />;
}
