"""
Records what Hugging Face transformers makes of the templates in templates.json: text, or the error, into recorded.json.

Python 3.11.7, Jinja2 3.1.6, MarkupSafe 3.0.4; the environment is that of transformers 5.24.0,
utils/chat_template_utils.py `_cached_compile_jinja_template`, copied below. The clock stands still at 2026-07-04 09:05:03.000678.

    python3 -m venv venv && venv/bin/pip install jinja2==3.1.6 && venv/bin/python make_templates.py && venv/bin/python record.py

A render gets messages [], tools None, documents None and add_generation_prompt False where the context has none, as
`render_jinja_template` passes them. `parse` says that the error is of the template and not of a render.
Addresses of Python's objects are written as 0x0.
"""
import json
import os
import random
import re
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

os.environ["TZ"] = "UTC"
NOW = datetime(2026, 7, 4, 9, 5, 3, 678)


class AssistantTracker(Extension):
    tags = {"generation"}

    def __init__(self, environment):
        super().__init__(environment)
        environment.extend(activate_tracker=self.activate_tracker)
        self._tracking = ContextVar("assistant_tracker", default=None)

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation_support"), [], [], body).set_lineno(lineno)

    @jinja2.pass_eval_context
    def _generation_support(self, context, caller):
        return caller()

    @contextmanager
    def activate_tracker(self, rendered_blocks, generation_indices):
        yield


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        TemplateNamespace._check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check_name(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(
                f"Chat templates cannot store underscore-prefixed attributes on a namespace, but got {name!r}. "
                "Please rename the attribute."
            )


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return NOW.strftime(format)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[AssistantTracker, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = TemplateNamespace
    return env


def record(case):
    try:
        template = environment().from_string(case["template"])
    except Exception as error:
        return {"error": str(error), "type": type(error).__name__, "parse": True}
    given = {"messages": [], "tools": None, "documents": None, "add_generation_prompt": False, **case["context"]}
    try:
        return {"text": re.sub(r"0x[0-9a-f]{9,}", "0x0", template.render(**given))}
    except Exception as error:
        return {"error": str(error), "type": type(error).__name__}


if __name__ == "__main__":
    random.seed(0)
    cases = json.load(open(sys.argv[1] if len(sys.argv) > 1 else "templates.json"))
    recorded = [{**case, **record(case)} for case in cases]
    lines = [json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in recorded]
    open(sys.argv[2] if len(sys.argv) > 2 else "recorded.json", "w").write("[\n" + ",\n".join(lines) + "\n]\n")
    print(len(recorded), "recorded,", sum("text" in r for r in recorded), "render")
