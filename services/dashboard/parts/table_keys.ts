/** Keys of a table: arrows, Home and End move from row to row. */

/** Moves the focus to the link of another row. */
export function moveFocus(event: KeyboardEvent): void {
  const frame = event.currentTarget;
  if (!(frame instanceof HTMLElement)) return;
  const links = [...frame.querySelectorAll<HTMLAnchorElement>('tbody tr td:first-child a')];
  const at = links.findIndex((link) => link.closest('tr')?.contains(document.activeElement) === true);
  const to = targetOf(event.key, at, links.length);
  const link = to === undefined ? undefined : links[to];
  if (!link) return;
  event.preventDefault();
  link.focus();
  link.scrollIntoView({ block: 'nearest' });
}

function targetOf(key: string, at: number, length: number): number | undefined {
  if (key === 'ArrowDown') return Math.min(length - 1, at + 1);
  if (key === 'ArrowUp') return at < 0 ? undefined : Math.max(0, at - 1);
  if (key === 'Home') return 0;
  return key === 'End' ? length - 1 : undefined;
}
