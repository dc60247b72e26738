"""Checks of the other routes, of errors and of helpers with the `openai` package."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from typing import Any, Literal

import openai
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from checks import (
    BASE_URL,
    MODEL,
    TIMEOUT_S,
    check,
    equal,
    example,
    found,
    is_idle,
    is_in,
    joined,
    last_phase,
    question,
    raised,
    until,
)
from openai_chat import answer, assert_usage, chat, client, plain, text_of

PROMPT = "The Heron came in at"
ENDLESS: dict[str, Any] = {"max_tokens": 1_900, "extra_body": {"ignore_eos": True}}


def complete(**more: Any) -> openai.types.Completion:
    """Completes a prompt, greedily, by eight tokens; parameters may be changed and added."""
    return client.completions.create(**{"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0, **more})


def token_ids(text: str) -> list[int]:
    """Returns the ids of a text's tokens."""
    body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
    return client.post(f"{BASE_URL.removesuffix('/v1')}/tokenize", body=body, cast_to=dict[str, Any])["tokens"]


@check("completions echo")
def _() -> None:
    [whole], [echoed] = complete().choices, complete(echo=True).choices
    assert whole.text, "there is a text"
    equal(echoed.text, PROMPT + whole.text)
    [scored] = complete(echo=True, logprobs=1).choices
    logprobs = found(scored.logprobs)
    equal([joined(found(logprobs.tokens)), found(logprobs.token_logprobs)[0]], [echoed.text, None])


@check("completions suffix")
def _() -> None:
    assert complete(suffix=" with 12 barrels of oil.").choices[0].text


@check("completions best_of")
def _() -> None:
    completion = complete(best_of=4, n=2, temperature=1.2, seed=1)
    equal([len(completion.choices), found(completion.usage).completion_tokens > 8 * 2], [2, True])
    equal(complete(best_of=2).choices[0].text, complete().choices[0].text)


@check("completions list")
def _() -> None:
    completion = complete(prompt=[PROMPT, "Mira keeps"])
    equal([choice.index for choice in completion.choices], [0, 1])
    alone = [complete(prompt=prompt) for prompt in (PROMPT, "Mira keeps")]
    equal([choice.text for choice in completion.choices], [one.choices[0].text for one in alone])
    equal(found(completion.usage).total_tokens, sum(found(one.usage).total_tokens for one in alone))


@check("completions token lists")
def _() -> None:
    ids = token_ids(PROMPT)
    one, several = complete(prompt=ids), complete(prompt=[ids, token_ids("Mira keeps")])
    equal(found(one.usage).prompt_tokens, len(ids))
    equal([one.choices[0].text, len(several.choices)], [several.choices[0].text, 2])


@check("completions default max_tokens")
def _() -> None:
    completion = client.completions.create(model=MODEL, prompt=PROMPT, extra_body={"ignore_eos": True})
    equal([found(completion.usage).completion_tokens, completion.choices[0].finish_reason], [16, "length"])


@check("embeddings")
def _() -> None:
    texts = ["Mira keeps the red key.", "The Heron came in at 5:07."]
    both = client.embeddings.create(model=MODEL, input=texts)
    equal([item.index for item in both.data], [0, 1])
    numbers = client.embeddings.create(model=MODEL, input=token_ids(texts[1]), encoding_format="float")
    for one, two in zip(both.data[1].embedding, numbers.data[0].embedding, strict=True):
        assert math.isclose(one, two, abs_tol=1e-6), "base64 and float are the same numbers"
    for item in both.data:
        equal([len(item.embedding), round(sum(number**2 for number in item.embedding), 4)], [192, 1])
    equal([both.usage.prompt_tokens, both.usage.total_tokens], [sum(len(token_ids(text)) for text in texts)] * 2)


@check("responses.create")
def _() -> None:
    response = client.responses.create(model=MODEL, input=plain["messages"], temperature=0)
    equal([response.status, response.output_text], ["completed", answer])
    usage = found(response.usage)
    equal([usage.input_tokens, usage.output_tokens], [plain["prompt_tokens"], plain["answer_tokens"]])
    more = client.responses.create(model=MODEL, input=plain["messages"][1]["content"], previous_response_id=response.id)
    equal([more.output_text, client.responses.retrieve(response.id).output_text], [answer, answer])
    events = list(client.responses.create(model=MODEL, input=plain["messages"], temperature=0, stream=True))
    equal(joined(event.delta for event in events if event.type == "response.output_text.delta"), answer)
    equal([events[0].type, events[-1].type], ["response.created", "response.completed"])


@check("models.list")
def _() -> None:
    equal([(model.id, model.object) for model in client.models.list()], [(MODEL, "model")])


@check("models.retrieve")
def _() -> None:
    equal(client.models.retrieve(MODEL).id, MODEL)


@check("models.retrieve unknown")
def _() -> None:
    is_in("nope", raised(openai.NotFoundError, lambda: client.models.retrieve("nope")).message)


@check("with_raw_response")
def _() -> None:
    raw = client.chat.completions.with_raw_response.create(**question(plain), temperature=0)
    equal([text_of(raw.parse()), bool(raw.headers["x-request-id"])], [answer, True])


@check("with_streaming_response")
def _() -> None:
    with client.chat.completions.with_streaming_response.create(**question(plain), stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    is_in("text/event-stream", response.headers["content-type"])
    equal(lines[-1], "data: [DONE]")


@check("err wrong model -> NotFound")
def _() -> None:
    error = raised(openai.NotFoundError, lambda: chat(model="nope"))
    equal([error.code, error.param], ["model_not_found", "model"])
    is_in(MODEL, error.message)


@check("err bad param -> BadRequest")
def _() -> None:
    error = raised(openai.BadRequestError, lambda: chat(temperature=9))
    equal([error.param, error.type], ["temperature", "invalid_request_error"])


@check("err empty messages")
def _() -> None:
    equal(raised(openai.BadRequestError, lambda: chat(messages=[])).param, "messages")


@check("err too long context_length_exceeded")
def _() -> None:
    messages = [{"role": "user", "content": "a " * 4_000}]
    error = raised(openai.BadRequestError, lambda: chat(messages=messages))
    equal([error.code, error.param], ["context_length_exceeded", "messages"])


@check("err max_tokens over ctx")
def _() -> None:
    error = raised(openai.BadRequestError, lambda: chat(max_tokens=5_000))
    equal(error.code, "context_length_exceeded")
    is_in("2048", error.message)


@check("timeout -> APITimeoutError")
def _() -> None:
    raised(
        openai.APITimeoutError, lambda: client.with_options(timeout=0.5).completions.create(model=MODEL, prompt=PROMPT, **ENDLESS)
    )
    until("the request that timed out is cancelled", lambda: last_phase() == "cancelled")
    until("it has left nothing behind", is_idle)


@check("stream close frees")
def _() -> None:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, stream=True, **ENDLESS)
    texts = [chunk.choices[0].text for chunk in itertools.islice(stream, 5)]
    equal([bool(joined(texts)), last_phase()], [True, "decoding"])
    stream.close()
    until("the closed stream is cancelled", lambda: last_phase() == "cancelled")
    until("it has left nothing behind", is_idle)


@check("beta stream helper")
def _() -> None:
    with client.chat.completions.stream(**question(plain), temperature=0, stream_options={"include_usage": True}) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    equal([joined(deltas), text_of(final)], [answer, answer])
    assert_usage(final.usage)
    case = example("call")
    with client.chat.completions.stream(**question(case), temperature=0) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    equal([{"name": event.name, "arguments": json.loads(event.arguments)} for event in done], case["expected"]["tool_calls"])


class Code(BaseModel):
    """The answer to the question after a locker's code."""

    number: int = Field(ge=0, le=999)
    code: int = Field(ge=0, le=9999)


class Kept(BaseModel):
    """A schema with an enum and a list of bounded length."""

    kind: Literal["key", "chart"]
    places: list[Literal["pier", "mill"]] = Field(max_length=2)


@check("parse pydantic")
def _() -> None:
    case = example("json", 3)
    completion = client.chat.completions.parse(**question(case), temperature=0, response_format=Code)
    equal(found(completion.choices[0].message.parsed), Code.model_validate_json(case["expected"]["content"]))
    assert isinstance(client.chat.completions.parse(**question(plain), response_format=Kept).choices[0].message.parsed, Kept)


@check("stream helper with logprobs")
def _() -> None:
    parameters = {**question(plain), "temperature": 0, "logprobs": True, "top_logprobs": 2}
    with client.chat.completions.stream(**parameters) as stream:
        deltas = [event for event in stream if event.type == "logprobs.content.delta"]
        final = stream.get_final_completion()
    whole = found(found(chat(logprobs=True, top_logprobs=2).choices[0].logprobs).content)
    streamed = found(found(final.choices[0].logprobs).content)
    equal([token.model_dump() for token in streamed], [token.model_dump() for token in whole])
    equal(sum(len(event.content) for event in deltas), len(whole))


@check("async gather 8")
async def _() -> None:
    cases = [example("nocall", index) for index in range(6)] + [example("plain", index) for index in range(2)]
    async with AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=TIMEOUT_S) as peer:
        asked = [peer.chat.completions.create(**question(case), temperature=0) for case in cases]
        answers = await asyncio.gather(*asked)
    equal([text_of(one) for one in answers], [case["expected"]["content"] for case in cases])


def unsupported(path: str, call: Any) -> None:
    """A route that is not there is a 404 that names the path and says which there are."""
    error = raised(openai.NotFoundError, call)
    is_in(f"{path} does not exist", error.message)
    is_in("/v1/chat/completions", error.message)


@check("unsupported moderations")
def _() -> None:
    unsupported("/v1/moderations", lambda: client.moderations.create(input="a"))


@check("unsupported audio")
def _() -> None:
    unsupported("/v1/audio/speech", lambda: client.audio.speech.create(model=MODEL, input="a", voice="alloy"))


@check("unsupported files")
def _() -> None:
    unsupported("/v1/files", lambda: client.files.list())


@check("unsupported batches")
def _() -> None:
    unsupported("/v1/batches", lambda: client.batches.list())
