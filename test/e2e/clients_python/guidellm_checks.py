"""
Checks with the benchmark GuideLLM. Each runs one over synthetic prompts that it makes with the model's tokenizer, and looks at the
report: how many requests succeeded, how many tokens and events each had, and that the same body gets the same answer again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from itertools import product
from pathlib import Path
from typing import Any

from checks import MODEL_FOLDER, SERVER, TIMEOUT_S, add, equal, run

NUM_REQUESTS = 6
PROMPT_TOKENS = 48
OUTPUT_TOKENS = 12
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
PROFILES = ("synchronous", "concurrent,streams=3", "throughput,max_concurrency=6", "constant,rate=10")


def report_of(route: str, profile: str, is_streamed: bool, file: Path) -> dict[str, Any]:
    """Runs a benchmark to its end and returns its only result."""
    options = {
        "backend": f"kind=openai_http,target={SERVER},request_format={route},stream={str(is_streamed).lower()}",
        "profile": f"kind={profile}",
        "constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "tokenizer": f"kind=huggingface_auto,model={MODEL_FOLDER}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        "output": f"kind=json,path={file}",
    }
    arguments = [text for option, value in options.items() for text in (f"--{option}", value)]
    command = [sys.executable, "-m", "guidellm", "run", *arguments, "--disable-console"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * TIMEOUT_S)
    assert done.returncode == 0, f"guidellm ended with {done.returncode}: {done.stderr[-400:]}"
    [benchmark] = json.loads(file.read_text())["benchmarks"]
    return benchmark


def asked_again(route: str, body: dict[str, Any]) -> tuple[str, int]:
    """Sends a body once more, not as a stream, and returns the text and the number of tokens of the prompt."""
    whole = {key: value for key, value in body.items() if key != "stream_options"} | {"stream": False}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{SERVER}{route}", json.dumps(whole).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        answer = json.load(response)
    if route == "/v1/responses":
        texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
        return "".join(texts), answer["usage"]["input_tokens"]
    [choice] = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"], answer["usage"]["prompt_tokens"]


def benchmark(route: str, profile: str, is_streamed: bool) -> None:
    """Checks one report."""
    with tempfile.TemporaryDirectory(prefix="penstock-guidellm-") as folder:
        report = report_of(route, profile, is_streamed, Path(folder) / "report.json")
    totals = report["metrics"]["request_totals"]
    equal([totals["successful"], totals["errored"]], [NUM_REQUESTS, 0])
    requests = report["requests"]["successful"]
    equal(len(requests), NUM_REQUESTS)
    for request in requests:
        body = json.loads(request["request_args"])["body"]
        equal(request["output_tokens"], OUTPUT_TOKENS)
        equal((request["output"], request["prompt_tokens"]), asked_again(route, body))
        # A template adds tokens to a prompt, and a text that is encoded again may have one token more or less.
        assert PROMPT_TOKENS - 4 <= request["prompt_tokens"] <= PROMPT_TOKENS + 30, f"{request['prompt_tokens']} tokens"
        if is_streamed:
            assert request["info"]["timings"]["token_iterations"] > OUTPUT_TOKENS / 2, "it comes token by token"
            assert 0 < request["time_to_first_token_ms"] <= 1_000 * request["request_latency"], "a first token has its time"


for route, is_streamed, profile in product(ROUTES, (True, False), PROFILES):
    kind = profile.split(",")[0]
    name = f"{route} {kind} {'stream' if is_streamed else 'whole'}"
    add(name, lambda route=route, profile=profile, is_streamed=is_streamed: benchmark(route, profile, is_streamed))

if __name__ == "__main__":
    run()
