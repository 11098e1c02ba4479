"""For mkdocs: pages of the site that are not in docs/, and links between what is where.

Pages link to each other as they lie in the repository. On the site README, changelog and the like
are pages beside the others, and the reference is made from the code: commands from the command
line's own description, Python from docstrings (mkdocstrings).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from outrider.cli.bench import LazyBench, load
from outrider.cli.main import app

ROOT = Path(__file__).resolve().parents[1]

OUTSIDE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/README.md": "examples.md",
    "models/README.md": "models.md",
}
"""Pages elsewhere in the repository, and what they are called on the site."""

REFERENCE = {
    "reference/api.md": (
        "The Python API",
        {
            "outrider.edge_client.api": ("AsyncOutrider", "Outrider"),
            "outrider.edge_client.answer": ("Piece", "Answer"),
        },
    ),
    "reference/interfaces.md": (
        "What others can register",
        {
            "outrider.edge_client.policy": ("Observed", "Plan", "Policy"),
            "outrider.runtime.lm.base": ("CausalLM",),
            "outrider.runtime.lm.drafter": ("Guess", "Drafter"),
            "outrider.cloud_server.targets.base": ("TargetInfo", "Row", "Decided", "Target"),
            "outrider.protocol.decoding.sampling": ("Rule", "Sampling"),
            "outrider.protocol.errors": (),
        },
    ),
}
"""Pages made from docstrings: title, modules, and what is shown of each; empty: all of it."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are elsewhere or made here."""
    made = {name: relink(_read(source), source, name) for source, name in OUTSIDE.items()}
    made |= {name: "\n".join(_module_page(*about)) for name, about in REFERENCE.items()}
    made["reference/commands.md"] = "\n".join(_commands())
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the pages in docs/ that lead out of it."""
    del config, files
    source = page.file.src_uri
    if source in OUTSIDE.values() or source.startswith("reference/"):
        return markdown
    return relink(markdown, f"docs/{source}", source)


def relink(text: str, source: str, name: str) -> str:
    """Links from where a page lies in the repository to where pages are on the site.

    What is not on the site is named without a link. Code is left alone.
    """
    parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
    return "".join(
        part if i % 2 else LINK.sub(lambda found: _link(found, source, name), part)
        for i, part in enumerate(parts)
    )


def _link(found: re.Match[str], source: str, name: str) -> str:
    image, label, link = found.groups()
    place, _, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link) or not place:
        return found[0]
    target = os.path.normpath(PurePosixPath(source).parent / place)
    inside = target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE.get(target)
    if inside is None:
        return f"{label} (`{target}`)" if not image else ""
    here = os.path.relpath(inside, PurePosixPath(name).parent)
    return f"{image}[{label}]({here}{'#' + anchor if anchor else ''})"


def _read(source: str) -> str:
    return (ROOT / source).read_text("utf-8")


def _module_page(title: str, modules: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield f"# {title}\n"
    for module, members in modules.items():
        yield f"::: {module}"
        if members:
            yield f"    options:\n      members: [{', '.join(members)}]"
        yield ""


def _commands() -> Iterator[str]:
    """Every command with its arguments and options, as ``--help`` has them."""
    yield "# Commands\n"
    yield "Options may also stand in the settings file or the environment; the command line wins.\n"
    yield from _command(typer.main.get_command(app), "outrider")


def _command(command: Any, name: str) -> Iterator[str]:
    if isinstance(command, LazyBench):
        command = load()
    yield f"{'#' * min(4, 1 + len(name.split()))} {name}\n"
    yield f"{_prose(command.help)}\n"
    rows = [row for row in map(_row, command.params) if row]
    if rows:
        yield "| option | meaning |\n| --- | --- |"
        yield "\n".join(rows) + "\n"
    for child in sorted(getattr(command, "commands", {})):
        if not command.commands[child].hidden:
            yield from _command(command.commands[child], f"{name} {child}")


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    names = [*parameter.opts, *parameter.secondary_opts]
    shown = ", ".join(f"`{n}`" for n in names) if parameter.param_type_name == "option" else ""
    return f"| {shown or f'`{parameter.name}`'} | {_cell(parameter)} |"


def _cell(parameter: Any) -> str:
    default = parameter.default
    said = _prose(getattr(parameter, "help", None)).replace("\n", " ").replace("|", "\\|")
    plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    return f"{said} (`{default}`)" if plain and str(default) not in said else said


def _prose(text: str | None) -> str:
    """Help as plain words: no paragraph marks, nothing that would be taken for markup."""
    return (text or "").replace("\b", "").replace("<", "&lt;").strip()
