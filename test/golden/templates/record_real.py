"""
Records what Hugging Face transformers makes of the chat templates of models that people use, over twenty lists of messages, into real.json.
The templates are those of the vocabularies that config/test_vocabularies.js fetches, and not in the repository.

    venv/bin/python record_real.py ../../../node_modules/.cache/vocabularies

Environment, versions and clock: record.py. Special tokens of the configuration are variables, as in transformers.
"""
import json
import sys

from record import environment

MODELS = ["gemma3", "llama3_2", "mistral_nemo", "qwen3"]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather \"now\" — in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}, "days": {"type": "integer", "minimum": 0.5}},
            "required": ["city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "description": "", "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, call_id="call12345"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text, call_id="call12345", name="weather"):
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


CALLED = [user("Weather in Oslo?"), assistant("", tool_calls=[call("weather", {"city": "Oslo", "days": 2})])]
THOUGHT = "<think>\nShort.\n</think>\n\nFour."

# messages, tools, what else is passed
LISTS = [
    ([user("Hello")], None, {}),
    ([user("Hello")], None, {"add_generation_prompt": True}),
    ([system("You are brief."), user("  Hello \n")], None, {"add_generation_prompt": True}),
    ([user("Hello"), assistant("Hi."), user("And?")], None, {"add_generation_prompt": True}),
    ([system("  s  "), user("a"), assistant("  b  "), user("c"), assistant("d")], None, {}),
    ([user("ünïcödé 日本語 🙂 <|eot_id|> </s> [INST]")], None, {"add_generation_prompt": True}),
    ([user("")], None, {"add_generation_prompt": True}),
    ([], None, {"add_generation_prompt": True}),
    ([assistant("first")], None, {}),
    ([user("a"), user("b")], None, {}),
    ([system("only")], None, {}),
    ([user("2 + 2"), assistant(THOUGHT), user("And 3?")], None, {"add_generation_prompt": True}),
    ([user("2 + 2"), assistant(THOUGHT)], None, {}),
    ([user("2 + 2")], None, {"add_generation_prompt": True, "enable_thinking": False}),
    ([user("Weather?")], [WEATHER], {"add_generation_prompt": True}),
    ([system("Use tools."), user("Weather?")], [WEATHER, TIME], {"add_generation_prompt": True}),
    (CALLED, [WEATHER], {}),
    ([*CALLED, tool("{\"t\": -3}")], [WEATHER], {"add_generation_prompt": True}),
    ([*CALLED, tool("-3"), assistant("Cold."), user("Thanks")], [WEATHER, TIME], {"add_generation_prompt": True}),
    ([{"role": "user", "content": [{"type": "text", "text": "parts"}, {"type": "text", "text": "two"}]}], None, {"add_generation_prompt": True}),
    (
        [user("Both?"), assistant(None, tool_calls=[call("weather", {"city": "A"}, "callaaaaa"), call("time", {}, "callbbbbb")])],
        [WEATHER, TIME],
        {},
    ),
    ([user("x"), {"role": "observer", "content": "y"}], None, {}),
    ([system("Today?"), user("x")], None, {"date_string": "1 Jan 2030", "add_generation_prompt": True}),
    ([user("x")], [WEATHER], {"tools_in_user_message": False, "add_generation_prompt": True}),
]


def special_tokens(config):
    for name in ["bos_token", "eos_token", "unk_token", "pad_token"]:
        token = config.get(name)
        if token is not None:
            yield name, token["content"] if isinstance(token, dict) else token


def record(model, folder):
    config = json.load(open(f"{folder}/{model}/tokenizer_config.json"))
    template = environment().from_string(config["chat_template"])
    for messages, tools, more in LISTS:
        context = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False, **more}
        context = {**dict(special_tokens(config)), **context}
        try:
            outcome = {"text": template.render(**context)}
        except Exception as error:
            outcome = {"error": str(error)}
        yield {"model": model, "context": context, **outcome}


if __name__ == "__main__":
    recorded = [one for model in MODELS for one in record(model, sys.argv[1])]
    lines = [json.dumps(one, ensure_ascii=True, separators=(",", ":")) for one in recorded]
    open("real.json", "w").write("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(recorded), "recorded,", sum("text" in one for one in recorded), "render")
