/** The view Blocks: the tree of cached prefixes, and where a prompt lies. */
import type { VNode } from 'preact';
import { LookupCard } from './blocks/lookup_card.tsx';
import { TreeCard } from './blocks/tree_card.tsx';

/** The view Blocks. @param args parts of the address after the view's name: none, or the key of the run that the tree begins with. */
export function Blocks({ args }: { readonly args: readonly string[] }): VNode {
  return (
    <>
      <TreeCard focus={args[0] ?? null} />
      <LookupCard />
    </>
  );
}
