"""The images' recipes, read without Docker: what they copy exists, what they start is a command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer

from outrider.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
FILES = {"edge": ROOT / "docker" / "edge.Dockerfile", "cloud": ROOT / "docker" / "cloud.Dockerfile"}
KNOWN = {
    "FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL",
    "ENTRYPOINT", "CMD",
}  # fmt: skip


def instructions(end: str) -> list[tuple[str, str]]:
    """(instruction, arguments), comments dropped and continued lines joined."""
    lines = [x for x in FILES[end].read_text("utf-8").splitlines() if not x.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


def copied(end: str) -> list[str]:
    """What comes from the repository."""
    words = [rest.split() for name, rest in instructions(end) if name == "COPY"]
    return [word for line in words if not line[0].startswith("--from") for word in line[:-1]]


@pytest.mark.parametrize("end", FILES)
def test_the_recipe(end: str) -> None:
    steps = instructions(end)
    assert {name for name, _ in steps} <= KNOWN
    assert [name for name, _ in steps].count("FROM") == 2
    last = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM") :]
    after = dict(last)
    assert after["USER"] == "1000:1000"
    names = [name for name, _ in last]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "platform" not in FILES[end].read_text("utf-8")  # either architecture
    assert after["EXPOSE"] == re.search(r'"(\d+)"\]$', after["HEALTHCHECK"]).group(1)


@pytest.mark.parametrize("end", FILES)
def test_what_it_copies_is_here_and_enough(end: str) -> None:
    sources = copied(end)
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    sent = [line[1:] for line in ignore if line.startswith("!")]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in sent), source
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = set(project["tool"]["setuptools"]["package-dir"].values())
    assert packages <= set(sources)
    asked = re.findall(r'"\.\[(.+?)\]"', FILES[end].read_text("utf-8"))
    extras = {dict(instructions(end)).get("ARG", "").partition("=")[2] or asked[0]}
    assert extras <= project["project"]["optional-dependencies"].keys()


@pytest.mark.parametrize("end", FILES)
def test_what_it_starts_is_a_command(end: str) -> None:
    steps = dict(instructions(end))
    words = [*json.loads(steps["ENTRYPOINT"])[1:], *json.loads(steps["CMD"])]
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    context = command.make_context("x", words, resilient_parsing=True)
    assert str(context.params["port"]) == steps["EXPOSE"]


def test_health(llama_cloud) -> None:
    """Of a real verifier, and where nothing listens."""
    port = re.search(r":(\d+)/", llama_cloud.url).group(1)
    script = ROOT / "docker" / "health.py"
    for place, status in ((port, 0), ("9", 1)):
        done = subprocess.run([sys.executable, script, place], timeout=20, check=False)
        assert done.returncode == status


def test_hadolint() -> None:
    if not shutil.which("hadolint"):
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        ["hadolint", *FILES.values()], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
