"""Checks with LangChain's `langchain-openai`."""

from __future__ import annotations

import json
import math
from typing import Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field, SecretStr

from checks import BASE_URL, MODEL, TIMEOUT_S, check, equal, example, found, joined, raised, run

SERVED: dict[str, Any] = {
    "model": MODEL,
    "base_url": BASE_URL,
    "api_key": SecretStr("none"),
    "timeout": TIMEOUT_S,
    "max_retries": 0,
}
chat = ChatOpenAI(**SERVED, temperature=0)
plain = example("plain")
answer: str = plain["expected"]["content"]


class Code(BaseModel):
    """The code of a locker."""

    number: int = Field(ge=0, le=999)
    code: int = Field(ge=0, le=9999)


code_case = example("json", 3)
expected_code = Code.model_validate_json(code_case["expected"]["content"])


def messages_of(case: dict[str, Any]) -> list[Any]:
    """Returns an example's messages as pairs of role and text."""
    return [(message["role"], message["content"]) for message in case["messages"]]


def calls_of(message: Any) -> list[dict[str, Any]]:
    """Returns a message's tool calls in the form of the examples."""
    return [{"name": call["name"], "arguments": call["args"]} for call in message.tool_calls]


@check("invoke")
def _() -> None:
    message = chat.invoke(messages_of(plain))
    equal([message.content, message.response_metadata["finish_reason"]], [answer, "stop"])
    usage = found(message.usage_metadata)
    equal([usage["input_tokens"], usage["output_tokens"]], [plain["prompt_tokens"], plain["answer_tokens"]])


@check("stream")
def _() -> None:
    chunks = list(ChatOpenAI(**SERVED, temperature=0, stream_usage=True).stream(messages_of(plain)))
    equal(joined(str(chunk.content) for chunk in chunks), answer)
    assert len(chunks) > 5, "it comes token by token"
    equal(sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata), plain["answer_tokens"])


@check("batch")
def _() -> None:
    cases = [example("nocall", index) for index in range(4)] + [plain, example("plain", 1)]
    bound = [chat.bind_tools(case["tools"]) if case.get("tools") else chat for case in cases]
    for one, case in zip(bound, cases, strict=True):
        equal(one.invoke(messages_of(case)).content, case["expected"]["content"])
    batch = chat.batch([messages_of(plain), messages_of(example("plain", 1))] * 4)
    equal([message.content for message in batch], [answer, example("plain", 1)["expected"]["content"]] * 4)


@check("ainvoke/astream")
async def _() -> None:
    peer = ChatOpenAI(**SERVED, temperature=0)
    equal((await peer.ainvoke(messages_of(plain))).content, answer)
    equal(joined([str(chunk.content) async for chunk in peer.astream(messages_of(plain))]), answer)


@check("with_structured_output json_schema")
def _() -> None:
    equal(chat.with_structured_output(Code, method="json_schema").invoke(messages_of(code_case)), expected_code)


@check("with_structured_output function_calling")
def _() -> None:
    value = chat.with_structured_output(Code, method="function_calling").invoke(messages_of(code_case))
    equal(value, expected_code)


@check("with_structured_output json_mode")
def _() -> None:
    equal(chat.with_structured_output(Code, method="json_mode").invoke(messages_of(code_case)), expected_code)


@check("bind_tools")
def _() -> None:
    for case in [example("call", 9), example("parallel")]:
        message = chat.bind_tools(case["tools"]).invoke(messages_of(case))
        equal(calls_of(message), case["expected"]["tool_calls"])
        parts = list(chat.bind_tools(case["tools"]).stream(messages_of(case)))
        whole = parts[0]
        for part in parts[1:]:
            whole += part
        equal(calls_of(whole), case["expected"]["tool_calls"])


@check("tool history")
def _() -> None:
    case = example("after", 1)
    system, user, called, told = case["messages"]
    [call] = [call["function"] for call in called["tool_calls"]]
    arguments = call["arguments"] if isinstance(call["arguments"], dict) else json.loads(call["arguments"])
    history = [
        SystemMessage(system["content"]),
        HumanMessage(user["content"]),
        AIMessage("", tool_calls=[{"name": call["name"], "args": arguments, "id": "call_1"}]),
        ToolMessage(told["content"], tool_call_id="call_1"),
    ]
    equal(chat.bind_tools(case["tools"]).invoke(history).content, case["expected"]["content"])


@check("bind stop/logprobs")
def _() -> None:
    equal(chat.bind(stop=["code"]).invoke(messages_of(plain)).content, answer.split("code")[0])
    logprobs = chat.bind(logprobs=True).invoke(messages_of(plain)).response_metadata["logprobs"]["content"]
    assert joined(token["token"] for token in logprobs).startswith(answer)
    assert all(-5 < token["logprob"] <= 0 for token in logprobs)


@check("LLM completions")
def _() -> None:
    llm = OpenAI(**SERVED, temperature=0, max_tokens=8)
    text = llm.invoke("The Heron came in at")
    assert text, "there is a text"
    equal(joined(llm.stream("The Heron came in at")), text)
    equal(llm.batch(["The Heron came in at", "The Heron came in at"]), [text, text])


@check("responses api")
def _() -> None:
    message = ChatOpenAI(**SERVED, temperature=0, use_responses_api=True).invoke(messages_of(plain))
    equal(message.text, answer)
    case = example("call", 9)
    peer = ChatOpenAI(**SERVED, temperature=0, use_responses_api=True).bind_tools(case["tools"])
    equal(calls_of(peer.invoke(messages_of(case))), case["expected"]["tool_calls"])


@check("embeddings")
def _() -> None:
    embeddings = OpenAIEmbeddings(**SERVED, check_embedding_ctx_length=False)
    key, mill = embeddings.embed_documents(["Mira keeps the red key.", "The old mill."])
    equal([len(key), round(sum(number**2 for number in key), 4), key == mill], [192, 1, False])
    again = embeddings.embed_query("Mira keeps the red key.")
    assert all(math.isclose(one, two, abs_tol=1e-6) for one, two in zip(key, again, strict=True))


@check("context overflow -> exception type")
def _() -> None:
    raised(ContextOverflowError, lambda: chat.invoke("a " * 4_000))


if __name__ == "__main__":
    run()
