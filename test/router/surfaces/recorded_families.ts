/** Cases of the formats in which models of other families write reasoning and calls: each has a router of its own, with the family's chat template. */
import { families } from '../../text/output/family_texts.ts';
import { blocks, served, type Served } from '../../text/output/served_templates.ts';
import { chat, thinking, tools, type RecordedCase } from './recorded_cases.ts';

/** A case with its router. */
export interface FamilyCase {
  /** Chat template; undefined: that of the repository's model. */
  readonly template: string | undefined;
  /** Arguments of the router. */
  readonly args: readonly string[];
  readonly recorded: RecordedCase;
}

/** Families by the formats of their calls, each with reasoning where a family of the format has it. */
const byFormat = new Map(
  Object.values(served)
    .filter(({ tokens }) => tokens === undefined)
    .sort((a, b) => Number(a.reasoning !== undefined) - Number(b.reasoning !== undefined))
    .map((one) => [one.tools, one] as const),
);

/** Returns a template that renders; the family's own stands in a comment, where its signs are found too. */
const rendering = (own = ''): string =>
  `{# ${own} #}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}`;

/** Returns the case of a family: reasoning, if it has some, and a call, as its models write them. */
function caseOf({ tools: format, reasoning, template }: Served): FamilyCase {
  const [open, close] = reasoning ? blocks[reasoning] : ['', ''];
  const thought = reasoning ? `${open}I look.${close}` : '';
  const text = thought + families[format].write([['tide', { place: 'mill', days: 2 }]]);
  return { template: rendering(template), args: [], recorded: chat({ tools }, text) };
}

/** All cases of families, by the names of their recordings. */
export const familyCases: Readonly<Record<string, FamilyCase>> = {
  ...Object.fromEntries([...byFormat].map(([format, one]) => [`families/${format}`, caseOf(one)])),
  // The grammar of a call that must come is JSON where the family's own format is not.
  'families/enforced_as_json': {
    template: rendering(byFormat.get('qwen3_xml')?.template),
    args: [],
    recorded: chat(
      { tools, tool_choice: 'required' },
      '[{"name": "tide", "parameters": {"place": "mill", "days": 2}}]',
    ),
  },
  'families/unopened_reasoning': {
    template: undefined,
    args: ['--reasoning-parser', 'deepseek_r1'],
    recorded: chat(thinking, 'I look.\n</think>\n\nIt is open.'),
  },
};
