"""Checks with the `anthropic` package, at /v1/messages."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic import Anthropic

from checks import MODEL, SERVER, TIMEOUT_S, check, equal, example, is_in, joined, raised, run

client = Anthropic(base_url=SERVER, api_key="none", max_retries=0, timeout=TIMEOUT_S)
plain = example("plain")
answer: str = plain["expected"]["content"]


def body_of(case: dict[str, Any]) -> dict[str, Any]:
    """Returns an example's question in the form of Anthropic's API."""
    system, *messages = case["messages"]
    tools = [{"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]} for tool in case.get("tools", [])]
    return {"model": MODEL, "system": system["content"], "messages": messages, **({"tools": tools} if tools else {})}


@check("messages.create")
def _() -> None:
    message = client.messages.create(**body_of(plain), max_tokens=50)
    [block] = message.content
    assert block.type == "text"
    equal([block.text, message.stop_reason], [answer, "end_turn"])
    usage = message.usage
    equal(usage.input_tokens + (usage.cache_read_input_tokens or 0), plain["prompt_tokens"])
    equal(usage.output_tokens, plain["answer_tokens"])
    error = raised(anthropic.NotFoundError, lambda: client.messages.create(**{**body_of(plain), "model": "nope"}, max_tokens=5))
    is_in("nope", str(error))


@check("messages.stream")
def _() -> None:
    with client.messages.stream(**body_of(plain), max_tokens=50) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    equal([joined(texts), final.content[0].to_dict()["text"], final.stop_reason], [answer, answer, "end_turn"])
    assert len(texts) > 5, "it comes token by token"
    case = example("think")
    with client.messages.stream(**body_of(case), max_tokens=1_100, thinking={"type": "enabled", "budget_tokens": 1_024}) as stream:
        thinking, text = stream.get_final_message().content
    assert thinking.type == "thinking" and text.type == "text"
    equal([thinking.thinking, text.text], [case["expected"]["reasoning"], case["expected"]["content"]])


@check("tools and count_tokens")
def _() -> None:
    case = example("call", 5)
    message = client.messages.create(**body_of(case), max_tokens=50)
    [use] = message.content
    assert use.type == "tool_use"
    equal([{"name": use.name, "arguments": use.input}], case["expected"]["tool_calls"])
    equal(message.stop_reason, "tool_use")
    equal(client.messages.count_tokens(**body_of(case)).input_tokens, case["prompt_tokens"])
    body = body_of(case)
    told = {"type": "tool_result", "tool_use_id": use.id, "content": '{"high": "9:15"}'}
    history = [*body["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": [told]}]
    after = client.messages.create(**{**body, "messages": history}, max_tokens=50)
    equal(after.content[0].to_dict()["text"], "The tide at the dry storeroom is high at 9:15.")


if __name__ == "__main__":
    run()
