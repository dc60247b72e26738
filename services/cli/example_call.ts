/**
 * Returns a curl command that a user can paste once the cluster is ready, with a key from the environment where the router asks for one. A
 * model without a tokenizer gets a prompt of token ids.
 */
export function exampleCall(url: string, model: string, hasTokenizer: boolean, asksForKeys: boolean): string {
  const key = asksForKeys ? ' -H "Authorization: Bearer $PENSTOCK_API_KEY"' : '';
  return hasTokenizer
    ? `curl ${url}/v1/chat/completions -H 'content-type: application/json'${key} -d '{"model": "${model}", "messages": [{"role": "system", "content": "You keep the harbour log.\\nMira keeps the red key in the north boathouse.\\nLocker 42 opens with code 9071.\\nThe Heron came in at 5:07 with 12 barrels of oil.\\nNadia likes figs."}, {"role": "user", "content": "What is the code of locker 42?"}]}'`
    : `curl ${url}/v1/completions -H 'content-type: application/json'${key} -d '{"model": "${model}", "prompt": [1, 2, 3], "return_token_ids": true}'`;
}
