"""Checks of parameters with the `openai` package: OpenAI's own, and in `extra_body` those of other servers."""

from __future__ import annotations

import json
import time
from typing import Any, Callable

import openai

from checks import add, check, equal, example, found, is_in, question, raised
from openai_chat import answer, chat, client, plain, text_of

# The values stand in the order: accepted, and the answer stays the same; refused, naming the parameter.
PARAMETERS: dict[str, tuple[list[Any], list[Any]]] = {
    "user": (["mira"], []),
    "store": ([True, False], []),
    "service_tier": (["auto", "flex"], []),
    "metadata": ([{"boat": "Heron"}], []),
    "safety_identifier": (["mira"], []),
    "prompt_cache_key": (["mira"], []),
    "reasoning_effort": (["low"], []),
    "verbosity": (["low"], []),
    "modalities": ([["text"]], [["text", "audio"]]),
}
EXTRA: dict[str, tuple[list[Any], list[Any]]] = {
    "length_penalty": ([1.0], [2.0]),
    "use_beam_search": ([False], [True]),
    "documents": ([[]], [[{"title": "log", "text": "Mira keeps the key."}]]),
    "priority": ([0], [1]),
    "spaces_between_special_tokens": ([True], [False]),
    "mm_processor_kwargs": ([{}], [{"num_crops": 4}]),
    "vllm_xargs": ([{}], [{"a": 1}]),
    "add_special_tokens": ([False], []),
    "typical_p": ([1.0], [0.9]),
    "n_predict": ([-1], [4]),
    "cache_prompt": ([True, False], []),
    "repeat_penalty": ([1.0], [1.5]),
    "mirostat": ([0], [2]),
    "dynatemp_range": ([0], [0.5]),
    "thinking": ([], [{"type": "enabled", "budget_tokens": 100}]),
    "think": ([False], [True]),
    "keep_alive": (["5m"], []),
    "options": ([], [{"temperature": 0}]),
}


def table_check(key: str, accepted: list[Any], refused: list[Any], body: Callable[[Any], dict[str, Any]]) -> Callable[[], None]:
    """Makes the check of one row."""

    def run() -> None:
        for value in accepted:
            equal(text_of(chat(**body(value))), answer)
        for value in refused:
            error = raised(openai.BadRequestError, lambda value=value: chat(**body(value)))
            equal([error.param, error.code], [key, "invalid_request"])
            is_in(key, error.message)

    return run


def extra(**body: Any) -> Any:
    """Asks the plain question with these keys in the body, and returns the choice."""
    return chat(extra_body=body).choices[0]


SCHEMA = {"type": "object", "properties": {"boat": {"enum": ["Heron", "Tern"]}}, "required": ["boat"]}


@check("extra unknown param ignored?")
def _() -> None:
    raw = client.chat.completions.with_raw_response.create(**question(plain), temperature=0, extra_body={"tidal_wave": 1})
    equal([text_of(raw.parse()), raw.headers["x-penstock-ignored"]], [answer, "tidal_wave"])


@check("metadata/store/user/service_tier")
def _() -> None:
    equal(text_of(chat(metadata={"boat": "Heron"}, store=True, user="mira", service_tier="default")), answer)


for name, (accepted, refused) in PARAMETERS.items():
    add(f"param {name}", table_check(name, accepted, refused, lambda value, name=name: {name: value}))


@check("extra_body min_tokens")
def _() -> None:
    completion = chat(max_tokens=40, extra_body={"min_tokens": plain["answer_tokens"] + 5})
    assert found(completion.usage).completion_tokens >= plain["answer_tokens"] + 5, "the answer goes on"


@check("extra_body guided_json")
def _() -> None:
    is_in(json.loads(extra(guided_json=SCHEMA).message.content)["boat"], ["Heron", "Tern"])


@check("extra_body structured_outputs")
def _() -> None:
    is_in(extra(structured_outputs={"choice": ["Tern", "Heron"]}).message.content, ["Tern", "Heron"])
    assert extra(structured_outputs={"regex": "[0-9]{4}"}).message.content.isdigit()


@check("extra_body skip_special_tokens")
def _() -> None:
    bodies = [{"ignore_eos": True, "skip_special_tokens": skip} for skip in (True, False)]
    hidden, shown = [text_of(chat(max_tokens=plain["answer_tokens"] + 1, extra_body=body)) for body in bodies]
    equal(["<|im_end|>" in found(hidden), "<|im_end|>" in found(shown)], [False, True])


@check("extra_body best_of")
def _() -> None:
    completion = chat(extra_body={"best_of": 2})
    equal([text_of(completion), found(completion.usage).completion_tokens], [answer, 2 * plain["answer_tokens"]])


@check("extra_body truncate_prompt_tokens")
def _() -> None:
    equal(found(chat(extra_body={"truncate_prompt_tokens": 20}).usage).prompt_tokens, 20)


@check("extra_body prompt_logprobs")
def _() -> None:
    first, *others = chat(extra_body={"prompt_logprobs": 1}).prompt_logprobs
    equal([first, len(others)], [None, plain["prompt_tokens"] - 1])
    assert all(token["logprob"] <= 0 for position in others for token in position.values())


@check("extra_body echo")
def _() -> None:
    is_in(plain["messages"][1]["content"], extra(echo=True).message.content)


@check("extra_body chat_template_kwargs")
def _() -> None:
    case = example("think")
    more = {"chat_template_kwargs": {"enable_thinking": True}}
    message = client.chat.completions.create(**question(case), temperature=0, extra_body=more).choices[0].message
    equal([message.content, message.reasoning_content], [case["expected"]["content"], case["expected"]["reasoning"]])


@check("extra_body chat_template")
def _() -> None:
    completion = chat(max_tokens=4, extra_body={"chat_template": "{{ messages[-1].content }}"})
    assert found(completion.usage).prompt_tokens < plain["prompt_tokens"] / 2, "the prompt is the question alone"


@check("extra_body request_id")
def _() -> None:
    name = f"mine-{time.time_ns()}"
    raw = client.chat.completions.with_raw_response.create(**question(plain), extra_body={"request_id": name})
    is_in(name, f"{raw.headers['x-request-id']} {raw.parse().id}")


@check("extra_body cache_salt")
def _() -> None:
    salt = f"salt {time.time_ns()}"
    used = [found(found(chat(extra_body={"cache_salt": salt}).usage).prompt_tokens_details).cached_tokens for _ in range(2)]
    equal(used[0], 0)
    assert found(used[1]) >= 32, "the second one shares the blocks of the first"


@check("extra_body include_stop_str_in_output")
def _() -> None:
    equal(text_of(chat(stop="code", extra_body={"include_stop_str_in_output": True})), answer.split("code")[0] + "code")


@check("extra_body allowed_token_ids")
def _() -> None:
    ids = extra(return_token_ids=True).token_ids[:3]
    body = {"allowed_token_ids": ids, "return_token_ids": True}
    seen = chat(max_tokens=8, extra_body=body).choices[0].token_ids
    equal([len(seen), set(seen) <= set(ids)], [8, True])


@check("extra_body bad_words")
def _() -> None:
    message = extra(bad_words=["Locker", " opens"]).message
    text = f"{message.content} {getattr(message, 'reasoning_content', '')}"
    equal(["Locker" in text, " opens" in text], [False, False])


@check("extra_body kv_transfer_params")
def _() -> None:
    equal(extra(kv_transfer_params={"do_remote_decode": False}).message.content, answer)


@check("extra_body return_tokens_as_token_ids")
def _() -> None:
    body = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    choice: Any = chat(logprobs=True, extra_body=body).choices[0]
    equal([token.token for token in choice.logprobs.content], [f"token_id:{id}" for id in choice.token_ids])


@check("extra_body top_k")
def _() -> None:
    equal({text_of(chat(temperature=2, seed=seed, extra_body={"top_k": 1})) for seed in range(3)}, {answer})


@check("extra_body top_p")
def _() -> None:
    equal({text_of(chat(temperature=2, seed=seed, extra_body={"top_p": 0.000001})) for seed in range(3)}, {answer})


@check("extra_body min_p")
def _() -> None:
    equal({text_of(chat(temperature=2, seed=seed, extra_body={"min_p": 1})) for seed in range(3)}, {answer})


@check("extra_body grammar")
def _() -> None:
    is_in(extra(grammar='root ::= "Tern" | "Heron"').message.content, ["Tern", "Heron"])


@check("extra_body json_schema")
def _() -> None:
    is_in(json.loads(extra(json_schema=SCHEMA).message.content)["boat"], ["Heron", "Tern"])


@check("extra_body regex")
def _() -> None:
    text = extra(regex="[a-c]{3}-[0-9]{2}").message.content
    equal([len(text), text[3], text[4:].isdigit()], [6, "-", True])


@check("extra_body ebnf")
def _() -> None:
    is_in(extra(ebnf='root ::= ("Tern" | "Heron") "!"').message.content, ["Tern!", "Heron!"])


for name, (accepted, refused) in EXTRA.items():
    row = table_check(name, accepted, refused, lambda value, name=name: {"extra_body": {name: value}})
    add(f"extra_body {name}", row)
