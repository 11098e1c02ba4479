"""``outrider init``: from the address of a cloud to a settings file that every command reads."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import logs
from outrider.cli import options as o
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.cli.edge import EdgeOptions
    from outrider.runtime.doctor.fitting import Fitting

TOKENS = 48
"""Of the answer by which drafter and target are measured."""


def init(
    *,
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud",
            metavar="URL",
            rich_help_panel=o.CONNECTION,
            help="The cloud: ws://, wss:// or host:port, or the line of an invitation.",
        ),
    ] = None,
    api_key: o.ApiKey = None,
    api_key_file: o.ApiKeyFile = None,
    tls_fingerprint: o.TlsFingerprint = None,
    tls_ca: o.TlsCa = None,
    draft_model: Annotated[
        Path | None,
        typer.Option(
            "--draft-model",
            "-md",
            metavar="PATH",
            rich_help_panel=o.DRAFTING,
            help="The drafter (default: the smallest model here that has the target's tokenizer "
            "and fits into memory).",
        ),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Ask nothing: take defaults, and write over a settings file that is there (it is "
            "kept beside the new one, as .old).",
        ),
    ] = False,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            rich_help_panel=o.OUTPUT,
            help="The settings file to write (default: $XDG_CONFIG_HOME/outrider/config.toml).",
        ),
    ] = None,
) -> None:
    """Ask for a cloud, measure the way there, pick a drafter, write the settings.

    Nothing is written before the cloud was reached and a drafter fits. The
    file is for you alone (mode 600), since the cloud's key may be in it.

    Example: outrider init --cloud wss://gpu.example:8471 --api-key-file key.txt --yes
    """
    logs.configure(verbose)
    import asyncio

    from outrider.cli import link, report, settings
    from outrider.cli.edge import EdgeOptions, load_edge

    place = config.expanduser() if config else settings.usual_file()
    _may_write(place, yes)
    if cloud is None:
        cloud, api_key = _ask(yes, api_key, given=bool(api_key_file))
    options = EdgeOptions(
        cloud=cloud,
        api_key=api_key,
        api_key_file=api_key_file,
        tls_fingerprint=tls_fingerprint,
        tls_ca=tls_ca,
        draft_model=draft_model,
    )
    fitting = _fitting(options)
    chosen = draft_model or _choose(fitting)
    edge = load_edge(
        EdgeOptions(
            cloud=options.cloud,
            api_key=options.api_key,
            api_key_file=api_key_file,
            tls_fingerprint=options.tls_fingerprint,
            tls_ca=tls_ca,
            draft_model=chosen,
        )
    )
    if not json:
        _say_choice(fitting, edge.options.pack, given=draft_model is not None)
    found = asyncio.run(link.measure(edge, link.PROMPT, TOKENS))
    settings.write_file(place, _settings(options, cloud, edge.options.pack))
    mode = next(row for row in found["modes"] if row["objective"] == "balanced")
    if json:
        report.print_json(
            {
                "settings": str(place),
                "draft_model": str(edge.options.pack),
                "refused": fitting.refused,
                "mode": mode,
                "measured": found,
            }
        )
        return
    link.show(found)
    print(f"\nExpect: {_expectation(mode)}")
    print(f"Written: {place}")
    print("Next: outrider run, outrider chat, or outrider serve for apps")


def _may_write(place: Path, yes: bool) -> None:
    """Before anything is asked or measured.

    Raises:
        SettingError: a file is there and nobody said that it may go.
    """
    if yes or not place.exists():
        return
    if not sys.stdin.isatty():
        raise SettingError(f"{place} is there already: --yes writes a new one and keeps it as .old")
    typer.confirm(f"{place} is there already. Write a new one?", abort=True, err=True)


def _ask(yes: bool, key: str | None, *, given: bool) -> tuple[str, str | None]:
    """Address and key from the user, where flags do not say."""
    from outrider.runtime.net.invite import is_invite

    if yes:
        return o.DEFAULT_CLOUD, key
    if not sys.stdin.isatty():
        raise SettingError("no cloud: give --cloud (an address or the line of an invitation)")
    cloud = typer.prompt(
        "Cloud (address, or the line of an invitation)", default=o.DEFAULT_CLOUD, err=True
    ).strip()
    if is_invite(cloud) or key or given:
        return cloud, key
    key = typer.prompt(
        "Its key (empty: none)", default="", hide_input=True, show_default=False, err=True
    ).strip()
    return cloud, key or None


def _fitting(options: EdgeOptions) -> Fitting:
    """What is here and fits.

    Raises:
        NotConnectedError: the cloud cannot be reached, or refuses us.
    """
    from outrider.cli import embedded
    from outrider.cli.edge import read_key, tls_context
    from outrider.cli.exits import NotConnectedError
    from outrider.runtime.doctor.fitting import find_fitting
    from outrider.runtime.hub.local import local_models

    key, context = read_key(options), tls_context(options)
    models = [] if options.draft_model else [embedded.drafter(), *local_models()]
    found = find_fitting(options.cloud, models, key=key, context=context)
    if found.unreachable is not None:
        raise NotConnectedError(f"{found.unreachable.says}: {found.unreachable.do}")
    return found


def _choose(fitting: Fitting) -> Path:
    """The smallest that fits.

    Raises:
        NotConnectedError: none does; says what to get.
    """
    from outrider.cli.exits import NotConnectedError
    from outrider.runtime.hub.names import ALIASES

    if fitting.fit:
        return fitting.fit[0].path
    reasons = "; ".join(f"{name}: {why}" for name, why in fitting.refused.items())
    serves = f"the cloud serves {fitting.target}, and " if fitting.target else ""
    raise NotConnectedError(
        f"{serves}no model here can draft for the cloud ({reasons}): pull a small one of the "
        f"target's family (outrider pull {' or '.join(ALIASES)}, or OWNER/REPO on the hub) and "
        "run outrider init again"
    )


def _settings(options: EdgeOptions, cloud: str, pack: Path) -> dict[str, str]:
    """What the file says, by flag name.

    Address and key go together as an invitation, so that ``--cloud`` with another address never
    sends this key there.
    """
    from outrider.cli import embedded
    from outrider.cli.edge import read_key
    from outrider.runtime.net.invite import Invite, is_invite

    key = read_key(options)
    found: dict[str, str] = {"cloud": cloud}
    if not is_invite(cloud):
        if key and not options.api_key_file and not options.tls_ca:
            found["cloud"] = str(Invite(options.cloud, key, options.tls_fingerprint))
        else:
            found |= {
                name: str(Path(value).expanduser().absolute())
                for name, value in (
                    ("api-key-file", options.api_key_file),
                    ("tls-ca", options.tls_ca),
                )
                if value is not None
            }
            found |= {"api-key": options.api_key} if options.api_key else {}
            found |= {"tls-fingerprint": options.tls_fingerprint} if options.tls_fingerprint else {}
    if pack != embedded.drafter():
        found["draft-model"] = str(pack.absolute())
    return found


def _say_choice(fitting: Fitting, pack: Path, *, given: bool) -> None:
    if given:
        print(f"drafter: {pack}, as you said")
        return
    others = len(fitting.fit) - 1
    why = f"the smallest of {others + 1} that fit" if others else "the only one that fits"
    print(f"drafter: {pack}, {why}")
    for name, reason in fitting.refused.items():
        print(f"  not {name}: {reason}")


def _expectation(mode: dict[str, Any]) -> str:
    """One line: the mode, its speed beside the cloud's alone, and why."""
    ahead = f" {mode['frame']}" if mode["frame"] else " alone"
    rate, alone = mode["predicted_tps"], mode["cloud_tps"]
    speed = f", about {rate:.0f} tokens a second" if rate else ""
    if mode["frame"] and alone:
        speed += f" (the cloud alone: {alone:.0f})"
    if mode["why"].startswith(mode["mode"]):  # it says the mode itself, and more of it
        return f"{mode['why']}{speed}"
    return f"{mode['mode']}{ahead}{speed}: {mode['why']}"
