"""Checks with LiteLLM's functions."""

from __future__ import annotations

import json
from typing import Any

import litellm

from checks import BASE_URL, MODEL, SERVER, TIMEOUT_S, check, equal, example, found, is_in, joined, question, raised, run

litellm.suppress_debug_info = True
plain = example("plain")
answer: str = plain["expected"]["content"]


def complete(provider: str = "openai", case: dict[str, Any] = plain, **more: Any) -> Any:
    """Asks an example's question, greedily, through a provider of LiteLLM."""
    served = {"api_base": BASE_URL, "api_key": "none", "timeout": TIMEOUT_S, "num_retries": 0, "temperature": 0}
    return litellm.completion(**{**question(case), **served, "model": f"{provider}/{MODEL}", **more})


@check("completion openai/")
def _() -> None:
    response = complete()
    equal([response.choices[0].message.content, response.choices[0].finish_reason], [answer, "stop"])
    usage = response.usage
    equal([usage.prompt_tokens, usage.completion_tokens], [plain["prompt_tokens"], plain["answer_tokens"]])


@check("stream")
def _() -> None:
    chunks = list(complete(stream=True))
    equal(joined(chunk.choices[0].delta.content for chunk in chunks), answer)
    equal(chunks[-1].choices[0].finish_reason, "stop")


@check("stream usage")
def _() -> None:
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    [usage] = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    equal([usage.prompt_tokens, usage.completion_tokens], [plain["prompt_tokens"], plain["answer_tokens"]])


@check("hosted_vllm/")
def _() -> None:
    equal(complete("hosted_vllm").choices[0].message.content, answer)
    schema = {"type": "object", "properties": {"boat": {"enum": ["Heron", "Tern"]}}, "required": ["boat"]}
    response_format = {"type": "json_schema", "json_schema": {"name": "boat", "schema": schema}}
    forced = complete("hosted_vllm", response_format=response_format)
    is_in(json.loads(forced.choices[0].message.content)["boat"], ["Heron", "Tern"])


@check("text_completion")
def _() -> None:
    served = {"model": f"text-completion-openai/{MODEL}", "api_base": BASE_URL, "api_key": "none", "timeout": TIMEOUT_S}
    asked = {**served, "prompt": "The Heron came in at", "max_tokens": 8, "temperature": 0}
    response = litellm.text_completion(**asked)
    assert response.choices[0].text, "there is a text"
    equal(response.usage.completion_tokens, 8)
    equal(joined(chunk.choices[0].text for chunk in litellm.text_completion(**asked, stream=True)), response.choices[0].text)


@check("context window exception")
def _() -> None:
    messages = [{"role": "user", "content": "a " * 4_000}]
    raised(litellm.ContextWindowExceededError, lambda: complete(messages=messages))


@check("not found exception")
def _() -> None:
    error = raised(litellm.NotFoundError, lambda: complete(model="openai/nope"))
    is_in("nope", str(error))


@check("tools")
def _() -> None:
    for case in [example("call", 9), example("parallel")]:
        [choice] = complete(case=case).choices
        calls = [call.function for call in found(choice.message.tool_calls)]
        seen = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in calls]
        equal([seen, choice.finish_reason], [case["expected"]["tool_calls"], "tool_calls"])


@check("anthropic route over openai backend")
async def _() -> None:
    system, user = plain["messages"]
    served = {"api_base": BASE_URL, "api_key": "none", "max_tokens": 50, "temperature": 0}
    asked = {**served, "system": system["content"], "messages": [user]}
    translated: Any = await litellm.anthropic.messages.acreate(model=f"openai/{MODEL}", **asked)
    equal([translated["content"][0]["text"], translated["stop_reason"]], [answer, "end_turn"])
    equal([translated["usage"]["input_tokens"] > 0, translated["usage"]["output_tokens"]], [True, plain["answer_tokens"]])
    native = litellm.completion(
        model=f"anthropic/{MODEL}", api_base=SERVER, api_key="none", messages=plain["messages"], temperature=0, max_tokens=50
    )
    equal(native.choices[0].message.content, answer)


if __name__ == "__main__":
    run()
