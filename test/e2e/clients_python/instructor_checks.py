"""Checks with `instructor`, one for each way in which it asks for an object."""

from __future__ import annotations

import instructor
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel, Field

from checks import BASE_URL, TIMEOUT_S, Decision, add, equal, example, question, run

case = example("json", 3)


class Code(BaseModel):
    """The code of a locker."""

    number: int = Field(ge=0, le=999)
    code: int = Field(ge=0, le=9999)


def ask(mode: Mode) -> None:
    """The object that the mode gives is the one that the log has."""
    client = instructor.from_openai(OpenAI(base_url=BASE_URL, api_key="none", max_retries=0, timeout=TIMEOUT_S), mode=mode)
    value = client.chat.completions.create(**question(case), response_model=Code, max_retries=0, max_tokens=200, temperature=0)
    equal(value.model_dump(), Code.model_validate_json(case["expected"]["content"]).model_dump())


for name in ("TOOLS", "JSON", "MD_JSON", "JSON_SCHEMA"):
    add(f"mode {name}", lambda mode=Mode[name]: ask(mode))

if __name__ == "__main__":
    run({"mode MD_JSON": Decision("the prompt alone asks for JSON, which no server can enforce", "Field required")})
