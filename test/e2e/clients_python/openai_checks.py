"""All checks of the `openai` package."""

import openai_chat
import openai_parameters
import openai_routes
from checks import Decision, run

MODULES = (openai_chat, openai_routes, openai_parameters)

if __name__ == "__main__":
    run(
        {
            "max_tokens=0": Decision("an answer of a chat has at least one token", "max_tokens: Too small"),
            "image_url part": Decision("models read text only", "only text is supported"),
            "completions suffix": Decision("nothing is filled into the middle", "suffix: is not supported"),
            "extra_body echo": Decision("only completions repeat their prompt", "echo: is not supported"),
            "extra_body chat_template": Decision(
                "the template is the model's own: a client's program does not run", "chat_template: is not supported"
            ),
            "extra_body kv_transfer_params": Decision(
                "the conductor alone decides where KV blocks go", "kv_transfer_params: is not supported"
            ),
        }
    )
