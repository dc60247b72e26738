/** The values that a JSON schema allows, in a few words of Markdown. */

/** Whether a bound says more than which integers a number can hold. */
const isTold = (value) => value !== undefined && Math.abs(value) < 2 ** 31 - 1;
const code = (text) => `\`${text}\``;

function rangeText({ minimum, maximum, exclusiveMinimum: over }) {
  const high = isTold(maximum) ? maximum : undefined;
  if (over !== undefined) return ` over ${over}` + (high === undefined ? '' : `, at most ${high}`);
  if (!isTold(minimum)) return high === undefined ? '' : ` at most ${high}`;
  return high === undefined ? ` from ${minimum}` : ` ${minimum} to ${high}`;
}

/** Returns a length in parentheses, or nothing when every length is allowed. */
function lengthText(least = 0, most, what) {
  if (most !== undefined) return ` (${least > 0 ? `${least} to ${most}` : `at most ${most}`}${what})`;
  return least > 0 ? ' (not empty)' : '';
}

function stringText({ pattern, minLength, maxLength }) {
  if (pattern !== undefined) return `string matching ${code(pattern)}`;
  return `string${lengthText(minLength, maxLength, ' characters')}`;
}

/** Returns the schema below unions with null. */
function withoutNull(schema) {
  const others = (schema.anyOf ?? []).filter(({ type }) => type !== 'null');
  return others.length === 1 ? withoutNull(others[0]) : schema;
}

function objectText({ properties, additionalProperties, required = [] }) {
  if (properties === undefined) {
    const isAny = Object.keys(additionalProperties ?? {}).length === 0;
    return isAny ? 'object' : `object whose values are ${valueText(additionalProperties)}`;
  }
  const keyText = (key) => {
    const value = withoutNull(properties[key]);
    return code(key) + (value.type === 'object' && value.properties ? ` (${objectText(value)})` : '');
  };
  const keys = Object.keys(properties);
  const [needed, others] = [true, false].map((isNeeded) =>
    keys
      .filter((key) => required.includes(key) === isNeeded)
      .map(keyText)
      .join(', '),
  );
  if (needed === '') return `object with optional ${others}`;
  return `object with ${needed}` + (others === '' ? '' : `, optional ${others}`);
}

function arrayText({ items = {}, minItems, maxItems }) {
  return `array${lengthText(minItems, maxItems, '')} of ${valueText(items)}`;
}

/** Returns the values that a schema allows. That a parameter may be absent or null is not said. */
export function valueText(schema) {
  const { anyOf, enum: values, type } = schema;
  if (Object.hasOwn(schema, 'const')) return code(JSON.stringify(schema.const));
  if (values) {
    return values
      .filter((value) => value !== null)
      .map((value) => code(JSON.stringify(value)))
      .join(', ');
  }
  if (anyOf) {
    const texts = anyOf.filter((one) => one.type !== 'null').map((one) => valueText(one));
    return [...new Set(texts)].join('; or ');
  }
  const [name] = [type].flat().filter((one) => one !== 'null');
  switch (name) {
    case 'string':
      return stringText(schema);
    case 'integer':
    case 'number':
      return name + rangeText(schema);
    case 'array':
      return arrayText(schema);
    case 'object':
      return objectText(schema);
    default:
      return name ?? 'any value';
  }
}
