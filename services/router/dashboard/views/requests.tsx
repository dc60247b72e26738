/** The view Requests. */
import type { VNode } from 'preact';
import { Card, Notice } from '../parts/common.tsx';

/** The view Requests. @param args parts of the address behind the view's name. */
export function Requests({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <Card title="Requests">
      <Notice>{`Nothing yet (${args.join(', ')}).`}</Notice>
    </Card>
  );
}
