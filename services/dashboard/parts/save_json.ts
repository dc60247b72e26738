/** Values of the page as files. */

/** Lets the browser save `value` as a JSON file. */
export function saveJson(name: string, value: unknown): void {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: 'application/json' }));
  const link = document.createElement('a');
  link.href = url;
  link.download = `${name.replace(/[^\w.-]+/g, '_')}.json`;
  link.click();
  URL.revokeObjectURL(url);
}
