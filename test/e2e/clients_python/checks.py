"""
Runs the checks of one client library and prints a line of JSON for each: its name, its outcome and the reason.

A file of checks is started with the server's address and the folder of the demo model harbour-tools, which that server serves. Its
checks look at answers: texts, parsed objects, arguments of calls, sums of usage and classes of errors.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
import traceback
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, TypeVar

SERVER = sys.argv[1]
BASE_URL = f"{SERVER}/v1"
MODEL_FOLDER = Path(sys.argv[2])
MODEL = "harbour-tools"
TIMEOUT_S = 120

Check = Callable[[], Any]
T = TypeVar("T")

_checks: dict[str, Check] = {}
_cases: list[dict[str, Any]] = json.loads((MODEL_FOLDER / "examples.json").read_text())["cases"]


@dataclass(frozen=True)
class Decision:
    """Why a check fails by decision, and a text of the error that it must fail with."""

    reason: str
    error: str


def check(name: str) -> Callable[[Check], Check]:
    """Defines one check. It is right when the function, which may be a coroutine's, raises nothing."""

    def define(body: Check) -> Check:
        add(name, body)
        return body

    return define


def add(name: str, body: Check) -> None:
    """Defines a check as `check` does, for checks that are made from a table."""
    assert name not in _checks, f"{name} is there once"
    _checks[name] = body


def run(by_decision: dict[str, Decision] | None = None) -> None:
    """Runs all checks in the order in which they were defined."""
    decisions = by_decision or {}
    unknown = decisions.keys() - _checks.keys()
    assert not unknown, f"every mark names a check: {unknown}"
    for name, body in _checks.items():
        outcome, reason = _outcome(body, decisions.get(name))
        print(json.dumps({"check": name, "outcome": outcome, "reason": reason}), flush=True)


def _outcome(body: Check, decision: Decision | None) -> tuple[str, str]:
    try:
        result = body()
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if decision and decision.error in text:
            return "by decision", decision.reason
        return "wrong", f"{_place(error)}: {' '.join(text.split())[:600]}"
    if decision:
        return "wrong", f"it passes, and is marked as failing by decision: {decision.reason}"
    return "right", ""


def _place(error: Exception) -> str:
    """Returns the file and line of the check in which an error was raised."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [(file.name, line) for file, line in frames if file.parent == Path(__file__).parent and file != Path(__file__)]
    name, line = ours[-1] if ours else (Path(__file__).name, 0)
    return f"{name}:{line}"


async def _awaited(result: Any) -> None:
    await result


def equal(seen: object, expected: object) -> None:
    """Fails with both values when they differ."""
    assert seen == expected, f"{seen!r} is not {expected!r}"


def is_in(part: Any, whole: Any) -> None:
    """Fails with both values when the first is not in the second."""
    assert part in whole, f"{part!r} is not in {whole!r}"


def found(value: T | None) -> T:
    """Returns a value that must be there."""
    assert value is not None, "there is a value"
    return value


def raised(kind: type[T], call: Callable[[], object]) -> T:
    """Returns the error that the call must raise."""
    try:
        result = call()
    except Exception as error:
        assert isinstance(error, kind), f"{type(error).__name__} is no {kind.__name__}: {error}"
        return error
    raise AssertionError(f"no {kind.__name__} was raised, but this was returned: {result!r}")


def example(kind: str, index: int = 0) -> dict[str, Any]:
    """Returns an example of this kind that the model answers right: `messages`, `tools`, `expected` and counts of tokens."""
    return [case for case in _cases if case["kind"] == kind][index]


def question(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a chat that asks an example's question."""
    more = {"tools": case["tools"]} if case.get("tools") else {}
    return {"model": MODEL, "messages": case["messages"], **more}


def joined(parts: Iterable[str | None]) -> str:
    """Joins the parts of a stream's text."""
    return "".join(part or "" for part in parts)


def get(path: str) -> Any:
    """Returns the JSON that the server has under this path."""
    with urllib.request.urlopen(f"{SERVER}{path}", timeout=TIMEOUT_S) as response:
        return json.load(response)


def is_idle() -> bool:
    """Whether no request runs or waits anywhere in the cluster."""
    nodes = get("/api/pool")["nodes"]
    return all(node["running"] == 0 and node["waiting"] == 0 and not node["kv_usage"] for node in nodes)


def last_phase() -> str:
    """Where the newest request is: `decoding`, `finished`, `cancelled` and so on."""
    return get("/api/requests?limit=1")["requests"][0]["phase"]


def until(what: str, probe: Callable[[], bool], seconds: float = 30) -> None:
    """Polls until the probe holds."""
    end = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
