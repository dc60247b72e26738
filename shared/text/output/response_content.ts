/** Content parsers and transforms of response templates (response_template.ts): the text of a region as a value. */
import { isJson } from './argument_types.ts';

/** Returns the value of a region's text; undefined when the text is none. */
export type ContentParser = (text: string) => unknown;

type Options = Readonly<Record<string, unknown>>;
type Groups = Readonly<Record<string, string>>;

/** Depth of nested parsers and transforms. */
const MAX_DEPTH = 16;

/** Returns the content parser of a name, with its arguments. @throws Error when there is none of this name */
export function contentParser(name: string, options: Options, depth = 0): ContentParser {
  if (depth > MAX_DEPTH) throw new Error('response_template: content parsers are nested too deep');
  const stripped = (text: string): string => (options['strip'] === false ? text : text.trim());
  switch (name) {
    case 'text':
      return stripped;
    case 'int':
      return (text) => (/^[+-]?\d+$/.test(text.trim()) ? Number(text) : undefined);
    case 'float':
      return (text) => (text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : undefined);
    case 'bool':
      return (text) => ['true', '1'].includes(text.trim().toLowerCase());
    case 'json':
      return (text) => json(text, options);
    case 'xml-inline':
      return xmlInline(options, depth);
    case 'kv-lines':
      return keyValueLines(options, depth);
    default:
      throw new Error(`response_template: there is no content parser ${name}`);
  }
}

/** Parses JSON, and what a checkpoint's template allows besides it: keys without quotes, strings between other marks. */
function json(text: string, options: Options): unknown {
  const marks = Array.isArray(options['string_delims']) ? (options['string_delims'] as [string, string][]) : [];
  const between = (part: string): string =>
    options['unquoted_keys'] === true ? part.replace(/([{,]\s*)(\w+)(\s*:)/g, '$1"$2"$3') : part;
  let spelled = '';
  let from = 0;
  for (;;) {
    const next = nextString(text, from, marks);
    spelled += between(text.slice(from, next?.start));
    if (!next) break;
    spelled += JSON.stringify(next.string);
    from = next.end;
  }
  if (isJson(spelled)) return JSON.parse(spelled);
  return options['allow_non_json'] === true ? text.trim() : undefined;
}

/** Returns the first string at or after `from` that stands between a pair of marks. */
function nextString(
  text: string,
  from: number,
  marks: readonly (readonly [open: string, close: string])[],
): { readonly start: number; readonly end: number; readonly string: string } | undefined {
  const found = marks.flatMap(([open, close]) => {
    const start = text.indexOf(open, from);
    const end = start < 0 ? -1 : text.indexOf(close, start + open.length);
    return end < 0 ? [] : [{ start, end: end + close.length, string: text.slice(start + open.length, end) }];
  });
  return found.sort((one, other) => one.start - other.start)[0];
}

/** Returns the parser of the values within a content, which are texts where none is named. */
function valueParser(options: Options, depth: number): ContentParser {
  const { name, args } = (options['value_parser'] ?? {}) as { name?: string; args?: Options };
  return name === undefined ? (text) => text : contentParser(name, args ?? {}, depth + 1);
}

function xmlInline(options: Options, depth: number): ContentParser {
  const { tag_pattern: source, merge_duplicates: isMerging } = options;
  if (typeof source !== 'string') throw new Error('response_template: xml-inline needs tag_pattern');
  const pattern = new RegExp(source.replaceAll('(?P<', '(?<'), 'gsu');
  const parse = valueParser(options, depth);
  return (text) => {
    const entries = new Map<string, unknown>();
    for (const { groups } of text.matchAll(pattern)) {
      const key = groups?.['key'];
      if (key === undefined) return undefined;
      const value = parse(groups?.['value'] ?? '');
      const before = entries.get(key);
      if (isMerging === true && entries.has(key))
        entries.set(key, [...(Array.isArray(before) ? (before as unknown[]) : [before]), value]);
      else entries.set(key, value);
    }
    return Object.fromEntries(entries);
  };
}

function keyValueLines(options: Options, depth: number): ContentParser {
  const { line_sep: lineEnd = '\n', kv_sep: colon = ':' } = options as { line_sep?: string; kv_sep?: string };
  const parse = valueParser(options, depth);
  const trimmed = (text: string): string => (options['strip'] === false ? text : text.trim());
  return (text) => {
    const lines = text.split(lineEnd).filter((line) => line.includes(colon));
    return Object.fromEntries(
      lines.map((line) => {
        const at = line.indexOf(colon);
        return [trimmed(line.slice(0, at)), parse(trimmed(line.slice(at + colon.length)))];
      }),
    );
  };
}

/**
 * Returns a transform with its placeholders filled: `{content}` by the parsed content, `{name}` by a group of the pattern or a key of
 * the content.
 */
export function transformed(transform: unknown, content: unknown, groups: Groups, depth = 0): unknown {
  if (depth > MAX_DEPTH) return undefined;
  if (Array.isArray(transform)) return transform.map((one) => transformed(one, content, groups, depth + 1));
  if (typeof transform === 'object' && transform !== null)
    return Object.fromEntries(
      Object.entries(transform).map(([key, value]) => [key, transformed(value, content, groups, depth + 1)]),
    );
  const name = typeof transform === 'string' ? /^\{(\w+)\}$/.exec(transform)?.[1] : undefined;
  if (name === undefined) return transform;
  if (name === 'content') return content;
  if (Object.hasOwn(groups, name)) return groups[name];
  const isRecord = typeof content === 'object' && content !== null && Object.hasOwn(content, name);
  return isRecord ? (content as Record<string, unknown>)[name] : undefined;
}
