"""Other clients for the OpenAI API, where they are installed: LangChain and ``llm``.

They are no part of the test extra, for they bring more packages than all of this project:
``pip install langchain-openai llm``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROMPT = "And it came to pass"
SCHEMA = {
    "title": "verse",
    "description": "A place in a book.",
    "type": "object",
    "properties": {
        "book": {"type": "string", "enum": ["Genesis", "Exodus"]},
        "chapter": {"type": "integer", "minimum": 1, "maximum": 50},
    },
    "required": ["book", "chapter"],
    "additionalProperties": False,
}


def answer_of(running, tokens: int) -> str:
    return running.chat(PROMPT, max_tokens=tokens)[1]["choices"][0]["message"]["content"]


@pytest.fixture
def langchain(embedded):
    kind = pytest.importorskip("langchain_openai").ChatOpenAI

    def make(**more):
        return kind(
            base_url=embedded.base,
            api_key="none",
            model=embedded.service.model,
            temperature=0,
            max_retries=0,
            **more,
        )

    return make


def test_langchain(langchain, embedded) -> None:
    chat = langchain(max_tokens=12)
    whole = chat.invoke(PROMPT)
    assert whole.content == answer_of(embedded, 12)
    assert whole.usage_metadata["output_tokens"] == 12
    assert "".join(chunk.content for chunk in chat.stream(PROMPT)) == whole.content
    told = chat.bind(logprobs=True, top_logprobs=2).invoke(PROMPT).response_metadata["logprobs"]
    assert "".join(entry["token"] for entry in told["content"]) == whole.content


def test_langchain_structured(langchain) -> None:
    asked = langchain(max_tokens=120).with_structured_output(
        SCHEMA, method="json_schema", include_raw=True
    )
    made = asked.invoke(PROMPT)
    if made["raw"].response_metadata["finish_reason"] == "length":  # spaces are part of JSON
        pytest.skip("the embedded target wrote nothing but space")
    assert made["parsed"]["book"] in ("Genesis", "Exodus")
    assert 1 <= made["parsed"]["chapter"] <= 50


def test_llm(embedded, tmp_path: Path) -> None:
    """The command: its model is named in a file of its own."""
    if importlib.util.find_spec("llm") is None:
        pytest.skip("llm is not installed")
    model = {"model_id": "here", "model_name": embedded.service.model, "api_base": embedded.base}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    env = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    options = ["-o", "temperature", "0", "-o", "max_tokens", "12"]
    for more in ([], ["--no-stream"]):
        made = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "here", *options, *more, PROMPT],
            capture_output=True,
            text=True,
            env=env,
            timeout=120,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        assert made.stdout.strip() == answer_of(embedded, 12).strip()
