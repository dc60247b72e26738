"""Checks of chats with the `openai` package: answers, streams, tools, formats and histories."""

from __future__ import annotations

import json
import math
from typing import Any

from openai import OpenAI
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from checks import BASE_URL, MODEL, TIMEOUT_S, check, equal, example, found, is_in, joined, question

client = OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=TIMEOUT_S)
plain = example("plain")
answer: str = plain["expected"]["content"]

TIDE = {
    "type": "function",
    "function": {
        "name": "tide",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 20}},
            "required": ["place"],
            "additionalProperties": False,
        },
    },
}

# A question whose answer is certain at no token.
STORY = [{"role": "user", "content": "Tell me a story."}]


def chat(**more: Any) -> Any:
    """Asks the plain question, greedily; parameters may be changed and added. Returns an answer or a stream."""
    return client.chat.completions.create(**{**question(plain), "temperature": 0, **more})


def text_of(completion: ChatCompletion) -> str | None:
    """Returns the content of the only choice."""
    [choice] = completion.choices
    return choice.message.content


def calls_of(message: ChatCompletionMessage) -> list[dict[str, Any]]:
    """Returns a message's tool calls in the form of the examples."""
    calls = [call.function for call in message.tool_calls or [] if call.type == "function"]
    return [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]


def assert_usage(usage: CompletionUsage | None, case: dict[str, Any] = plain) -> None:
    """Checks all sums of an example's usage."""
    prompt, output = case["prompt_tokens"], case["answer_tokens"]
    seen = found(usage)
    equal([seen.prompt_tokens, seen.completion_tokens, seen.total_tokens], [prompt, output, prompt + output])


@check("chat")
def _() -> None:
    completion = chat()
    equal(text_of(completion), answer)
    equal([completion.object, completion.model], ["chat.completion", MODEL])
    equal([completion.choices[0].finish_reason, completion.choices[0].message.role], ["stop", "assistant"])
    assert_usage(completion.usage)


@check("stream")
def _() -> None:
    chunks = list(chat(stream=True))
    equal(joined(chunk.choices[0].delta.content for chunk in chunks), answer)
    equal(chunks[0].choices[0].delta.role, "assistant")
    equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])
    equal({chunk.id for chunk in chunks}, {chunks[0].id})
    assert all(chunk.usage is None for chunk in chunks), "no usage was asked for"


@check("stream usage")
def _() -> None:
    *chunks, last = list(chat(stream=True, stream_options={"include_usage": True}))
    equal(joined(chunk.choices[0].delta.content for chunk in chunks), answer)
    equal(last.choices, [])
    assert_usage(last.usage)


@check("logprobs")
def _() -> None:
    [choice] = chat(logprobs=True, top_logprobs=3).choices
    tokens = found(found(choice.logprobs).content)
    is_in(joined(token.token for token in tokens), [answer, f"{answer}<|im_end|>"])
    for token in tokens:
        equal(len(token.top_logprobs), 3)
        equal([token.token, token.logprob], [token.top_logprobs[0].token, token.top_logprobs[0].logprob])
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0001, "probabilities sum up to 1 at most"
        equal(bytes(found(token.bytes)).decode(), token.token)


@check("stop")
def _() -> None:
    [choice] = chat(stop=["code", "never"]).choices
    equal([choice.message.content, choice.finish_reason], [answer.split("code")[0], "stop"])


@check("stop str + stream")
def _() -> None:
    chunks = list(chat(stop="code", stream=True))
    equal(joined(chunk.choices[0].delta.content for chunk in chunks), answer.split("code")[0])
    equal(chunks[-1].choices[0].finish_reason, "stop")


@check("n=1")
def _() -> None:
    equal(text_of(chat(n=1)), answer)


@check("n=2")
def _() -> None:
    completion = chat(n=2)
    equal([(choice.index, choice.message.content) for choice in completion.choices], [(0, answer), (1, answer)])
    usage = found(completion.usage)
    equal([usage.prompt_tokens, usage.completion_tokens], [plain["prompt_tokens"], 2 * plain["answer_tokens"]])
    one, two = chat(messages=STORY, n=2, temperature=1.5, seed=1, max_tokens=40).choices
    assert one.message.content != two.message.content, "samples differ"


@check("tools auto")
def _() -> None:
    for case in [example("call"), example("parallel"), example("nocall")]:
        completion = client.chat.completions.create(**question(case), temperature=0, tool_choice="auto")
        [choice] = completion.choices
        expected = case["expected"]
        equal(calls_of(choice.message), expected.get("tool_calls", []))
        equal(choice.message.content, expected.get("content"))
        equal(choice.finish_reason, "tool_calls" if "tool_calls" in expected else "stop")
        assert_usage(completion.usage, case)


@check("tools choice none")
def _() -> None:
    case = example("call")
    completion = client.chat.completions.create(**question(case), temperature=0, tool_choice="none")
    equal(completion.choices[0].message.tool_calls or [], [])
    assert completion.choices[0].message.content, "there is a text in place of a call"
    assert found(completion.usage).prompt_tokens < case["prompt_tokens"], "the prompt has no tools"


@check("tools choice required")
def _() -> None:
    messages = [{"role": "user", "content": "Hello."}]
    [choice] = chat(messages=messages, tools=[TIDE], tool_choice="required", parallel_tool_calls=False).choices
    [call] = calls_of(choice.message)
    equal([call["name"], list(call["arguments"])], ["tide", ["place"]])
    assert isinstance(call["arguments"]["place"], str) and len(call["arguments"]["place"]) <= 20


@check("tools choice named")
def _() -> None:
    case = example("call")
    named = {"type": "function", "function": {"name": "tide"}}
    parameters = {**question(case), "tools": [*case["tools"], TIDE], "tool_choice": named}
    [choice] = client.chat.completions.create(**parameters, temperature=0).choices
    [call] = calls_of(choice.message)
    equal([call["name"], list(call["arguments"])], ["tide", ["place"]])


@check("tools=[] parallel_tool_calls")
def _() -> None:
    equal(text_of(chat(tools=[], parallel_tool_calls=True)), answer)


@check("parallel_tool_calls=False alone")
def _() -> None:
    equal(text_of(chat(parallel_tool_calls=False)), answer)


@check("response_format text")
def _() -> None:
    equal(text_of(chat(response_format={"type": "text"})), answer)


@check("response_format json_object")
def _() -> None:
    case = example("json", 4)
    parameters = {**question(case), "response_format": {"type": "json_object"}}
    completion = client.chat.completions.create(**parameters, temperature=0)
    equal(json.loads(found(text_of(completion))), json.loads(case["expected"]["content"]))
    forced = json.loads(found(text_of(chat(response_format={"type": "json_object"}, max_tokens=500, seed=1))))
    assert isinstance(forced, dict), "a question that asks for no JSON is answered by an object"


@check("response_format json_schema")
def _() -> None:
    # The model would not write this by itself: keys, an enum and a list of bounded length come from the schema.
    properties = {
        "ship": {"enum": ["Heron", "Tern"]},
        "codes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    }
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    json_schema = {"name": "log", "schema": schema, "strict": True}
    [choice] = chat(response_format={"type": "json_schema", "json_schema": json_schema}).choices
    value = json.loads(found(choice.message.content))
    equal([list(value), choice.finish_reason], [["ship", "codes"], "stop"])
    is_in(value["ship"], ["Heron", "Tern"])
    assert len(value["codes"]) <= 3 and all(0 <= code <= 99 for code in value["codes"])


@check("seed")
def _() -> None:
    one, again, other = [text_of(chat(messages=STORY, seed=seed, temperature=1.5, max_tokens=40)) for seed in (1, 1, 2)]
    equal([one == again, one == other], [True, False])


@check("logit_bias")
def _() -> None:
    ids: list[int] = chat(extra_body={"return_token_ids": True}).choices[0].token_ids
    biased = chat(logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True}).choices[0].token_ids
    assert ids[0] not in biased, "the token does not come"
    equal(
        chat(logit_bias={str(ids[3]): 100}, max_tokens=3, extra_body={"return_token_ids": True}).choices[0].token_ids, [ids[3]] * 3
    )


@check("max_completion_tokens")
def _() -> None:
    completion = chat(max_completion_tokens=5)
    equal([found(completion.usage).completion_tokens, completion.choices[0].finish_reason], [5, "length"])
    assert answer.startswith(found(text_of(completion)))


@check("both max_tokens")
def _() -> None:
    equal(found(chat(max_tokens=5, max_completion_tokens=6).usage).completion_tokens, 6)


@check("max_tokens=0")
def _() -> None:
    completion = chat(max_tokens=0)
    equal([found(completion.usage).completion_tokens, completion.choices[0].finish_reason], [0, "length"])


@check("developer role")
def _() -> None:
    system, user = plain["messages"]
    equal(text_of(chat(messages=[{**system, "role": "developer"}, user])), answer)


@check("content parts")
def _() -> None:
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in plain["messages"]]
    equal(text_of(chat(messages=parts)), answer)


@check("image_url part")
def _() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    system, user = plain["messages"]
    message = {"role": "user", "content": [{"type": "text", "text": user["content"]}, image]}
    equal(text_of(chat(messages=[system, message])), answer)


@check("assistant tool_call history")
def _() -> None:
    for index in (1, 2):
        case = example("after", index)
        completion = client.chat.completions.create(**question(case), temperature=0)
        equal(text_of(completion), case["expected"]["content"])
        assert_usage(completion.usage, case)


@check("message name field")
def _() -> None:
    system, user = plain["messages"]
    equal(text_of(chat(messages=[system, {**user, "name": "mira"}])), answer)


@check("assistant multi-turn + refusal/null fields")
def _() -> None:
    said = {"role": "assistant", "content": answer, "refusal": None, "tool_calls": None, "function_call": None, "audio": None}
    system, user = plain["messages"]
    completion = chat(messages=[system, user, said, user])
    equal(text_of(completion), answer)
    assert found(completion.usage).prompt_tokens > plain["prompt_tokens"] + plain["answer_tokens"]


@check("round trip message object")
def _() -> None:
    system, user = plain["messages"]
    equal(text_of(chat(messages=[system, user, chat().choices[0].message, user])), answer)
    case = example("call", 5)
    message = client.chat.completions.create(**question(case), temperature=0).choices[0].message
    told = {"role": "tool", "tool_call_id": found(message.tool_calls)[0].id, "content": '{"high": "9:15"}'}
    parameters = {**question(case), "messages": [*case["messages"], message, told]}
    is_in("9:15", found(text_of(client.chat.completions.create(**parameters, temperature=0))))


@check("prefix/continue (add_generation_prompt=False)")
def _() -> None:
    begun = {"role": "assistant", "content": answer[:15]}
    more = {"add_generation_prompt": False, "continue_final_message": True}
    equal(text_of(chat(messages=[*plain["messages"], begun], extra_body=more)), answer[15:])
