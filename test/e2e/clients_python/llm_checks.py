"""Checks with Simon Willison's command `llm`, which knows the server from a file extra-openai-models.yaml alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import BASE_URL, MODEL, TIMEOUT_S, check, equal, example, run

folder = tempfile.TemporaryDirectory(prefix="penstock-llm-")
(Path(folder.name) / "extra-openai-models.yaml").write_text(
    f"""
- model_id: harbour-chat
  model_name: {MODEL}
  api_base: {BASE_URL}
  supports_schema: true
  supports_tools: true
- model_id: harbour-text
  model_name: {MODEL}
  api_base: {BASE_URL}
  completion: true
"""
)
# A tool as the command takes it: a function of Python.
TIDE = """
def tide(place: str) -> str:
    "When the tide is high"
    return '{"high": "9:15"}' if place == "old mill" else '{}'
"""
plain = example("plain")
system, user = [message["content"] for message in plain["messages"]]
answer: str = plain["expected"]["content"]


def llm(*arguments: str) -> str:
    """Returns what the command prints."""
    environment = {**os.environ, "LLM_USER_PATH": folder.name, "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"llm {arguments[0]} ended with {done.returncode}: {done.stderr}"
    return done.stdout.strip()


def ask(*arguments: str) -> str:
    """Asks the model of chats, greedily."""
    return llm("prompt", "--model", "harbour-chat", "--option", "temperature", "0", *arguments)


@check("prompt")
def _() -> None:
    equal(ask("--no-stream", "--system", system, user), answer)
    [entry] = json.loads(llm("logs", "--json", "--count", "1"))
    equal([entry["input_tokens"], entry["output_tokens"]], [plain["prompt_tokens"], plain["answer_tokens"]])


@check("stream")
def _() -> None:
    equal(ask("--system", system, user), answer)
    text = [
        "prompt",
        "--model",
        "harbour-text",
        "--option",
        "temperature",
        "0",
        "--option",
        "max_tokens",
        "8",
        "The Heron came in at",
    ]
    streamed = llm(*text)
    assert streamed, "there is a text"
    equal(llm(*text, "--no-stream"), streamed)


@check("conversation")
def _() -> None:
    equal(ask("--system", system, user), answer)
    equal(ask("--continue", user), answer)
    first, second = json.loads(llm("logs", "--json", "--count", "2"))
    equal(first["conversation_id"], second["conversation_id"])
    tokens = sorted([first["input_tokens"], second["input_tokens"]])
    assert tokens[1] > tokens[0] + plain["answer_tokens"], "the first question and answer are sent again"


@check("schema")
def _() -> None:
    case = example("json", 3)
    log, asked = [message["content"] for message in case["messages"]]
    equal(json.loads(ask("--schema", "number int, code int", "--system", log, asked)), json.loads(case["expected"]["content"]))


@check("tools")
def _() -> None:
    asked = ["--system", "You keep the harbour log.", "When is the tide high at the old mill?"]
    equal(ask("--functions", TIDE, *asked), "The tide at the old mill is high at 9:15.")


if __name__ == "__main__":
    run()
