"""``outrider doctor``: look at everything that drafting needs, and say what to do."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import drafters, logs
from outrider.cli import options as o

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.runtime.doctor.check import Check
    from outrider.runtime.text.tokenizer import Tokenizer

_MARK = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "problem": ("PROBLEM", "bold red"),
}


def doctor(
    *,
    draft_model: drafters.DraftModels = None,
    draft_key: drafters.DraftKey = None,
    draft_key_file: drafters.DraftKeyFile = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME",
            rich_help_panel=o.DRAFTING,
            help="Say which models here draft for this target, and why the others do not: a path, "
            "or the name of a model that was pulled.",
        ),
    ] = None,
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud",
            metavar="URL",
            rich_help_panel=o.CONNECTION,
            help="Check the link to this cloud too: ws://, wss:// or host:port.",
        ),
    ] = None,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    ctx_size: o.DraftCtx = 0,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Check the libraries, the machine, the draft model and the link to a cloud.

    Each line is ok, a warning or a problem, and says what to do. Exit status 0: no problem.

    Example: outrider doctor --draft-model drafter-q4_k_m.gguf --cloud ws://127.0.0.1:8471
    """
    logs.configure(verbose)
    from outrider.cli.exits import WorkFailedError

    found: list[Check] = []
    checks = _checks(
        drafters.given(draft_model, draft_key, draft_key_file),
        model,
        ctx_size,
        cloud,
        (api_key, api_key_file, tls_fingerprint, tls_ca),
    )
    if json:
        found = list(checks)
        problems = sum(check.state == "problem" for check in found)
        print(jsonlib.dumps({"problems": problems, "checks": [c.as_json() for c in found]}))
    else:
        found = list(_shown(checks))
    problems = sum(check.state == "problem" for check in found)
    if problems:
        raise WorkFailedError(f"{problems} problem{'s' if problems > 1 else ''}: see above")


def _checks(
    given: drafters.Given,
    model: str | None,
    ctx_size: int,
    cloud: str | None,
    connection: tuple[str | None, Path | None, str | None, Path | None],
) -> Iterator[Check]:
    """Everything, cheapest first; each check is shown as soon as it is done."""
    from outrider.cli import embedded
    from outrider.protocol.errors import OutriderError
    from outrider.runtime.doctor.check import problem
    from outrider.runtime.doctor.libraries import check_libraries
    from outrider.runtime.doctor.machine import check_machine
    from outrider.runtime.doctor.models import check_model, needed_module
    from outrider.runtime.hub.resolve import resolve

    yield from check_machine()
    paths: list[Path] = []
    for named in (given["draft_model"], *given["partners"]):
        try:
            paths.append(resolve(str(named)) if named else embedded.drafter())
        except OutriderError as error:
            yield problem("draft model", str(error), "give a path, or a name that was pulled")
    path = paths[0] if paths else None
    yield from check_libraries(needed_module(path) if path else None)
    for one in paths:
        yield from check_model(one, ctx_size)
    yield from _group(given, paths)
    yield from _pairs(model, path)
    if cloud is not None:
        yield from _link(cloud, path, connection)


def _group(given: drafters.Given, paths: Sequence[Path]) -> Iterator[Check]:
    """Whether those that were named can draft together, and those elsewhere are there."""
    from outrider.protocol.errors import OutriderError
    from outrider.runtime.doctor.check import ok, problem, warning
    from outrider.runtime.text.tokenizer import load_tokenizer

    if not paths or len(paths) + len(given["remotes"]) < 2:
        return
    try:
        tokenizer = load_tokenizer(paths[0])
        drafters.check_together(paths, tokenizer)
    except OutriderError as error:
        yield problem("group", str(error), "name models of one family, each once")
        return
    for text in given["remotes"]:
        url = text.partition(",")[0]
        try:
            (member,) = drafters.meet([drafters.remote(text, given["draft_key"])], tokenizer)
        except OutriderError as error:
            yield problem("drafter elsewhere", f"{url}: {error}", "see outrider drafter serve")
            continue
        if member.there:
            yield ok("drafter elsewhere", f"{url} is there, context {member.n_ctx}")
        else:
            yield warning("drafter elsewhere", str(member.trouble), "start it, or leave it out")
        member.close()
    count = len(paths) + len(given["remotes"])
    yield ok("group", f"{count} drafters of one tokenizer")


def _pairs(model: str | None, path: Path | None) -> Iterator[Check]:
    """Who drafts for whom, of the models that are here and the one that was named."""
    from outrider.protocol.errors import OutriderError
    from outrider.runtime.doctor.check import problem
    from outrider.runtime.doctor.pairs import NAME, check_pairs
    from outrider.runtime.hub.local import local_models
    from outrider.runtime.hub.resolve import resolve

    try:
        target = resolve(model, "target") if model else None
    except OutriderError as error:
        yield problem(NAME, str(error), "give a path, or a name that was pulled")
        return
    models = local_models()
    if path is not None and path.resolve() not in {m.resolve() for m in models}:
        models.append(path)
    yield from check_pairs(target, models)


def _link(
    cloud: str,
    path: Path | None,
    connection: tuple[str | None, Path | None, str | None, Path | None],
) -> Iterator[Check]:
    from outrider.cli.edge import EdgeOptions, read_key, tls_context
    from outrider.runtime.doctor.cloud import check_cloud

    key, key_file, fingerprint, authority = connection
    options = EdgeOptions(
        cloud=cloud,
        draft_max=0,
        api_key=key,
        api_key_file=key_file,
        tls_fingerprint=fingerprint,
        tls_ca=authority,
    )
    yield from check_cloud(
        options.cloud, _tokenizer(path), key=read_key(options), context=tls_context(options)
    )


def _tokenizer(path: Path | None) -> Tokenizer | None:
    """None where it does not load: that has been said already."""
    from outrider.protocol.errors import OutriderError
    from outrider.runtime.text.tokenizer import load_tokenizer

    try:
        return load_tokenizer(path) if path else None
    except OutriderError:
        return None


def _shown(checks: Iterator[Check]) -> Iterator[Check]:
    """Print each check as it comes; what is running shows meanwhile on a terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    with console.status("looking ...") if console.is_terminal else _Nothing():
        for check in checks:
            _print(console, check)
            yield check


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _print(console: Console, check: Check) -> None:
    """One check: state, name, what it says; below it what to do."""
    from rich.table import Table
    from rich.text import Text

    word, style = _MARK[check.state]
    says = Text(check.says)
    if check.do:
        says.append(f"\n-> {check.do}", style="bold" if check.state == "problem" else "")
    if not console.is_terminal:
        line = check.says.replace("\n", "; ")
        print(f"{word:<8} {check.name}: {line}" + (f" -> {check.do}" if check.do else ""))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=7)
    grid.add_column(width=21, style="dim")
    grid.add_column(overflow="fold")
    grid.add_row(Text(word, style=style), check.name, says)
    console.print(grid)
