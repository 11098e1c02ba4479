"""What ``run`` and ``chat`` make of the flags that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from outrider.cli import drafters, judging, logs
from outrider.cli import options as o
from outrider.cli.settings import given_as_flag
from outrider.protocol.errors import SettingError

if TYPE_CHECKING:
    from outrider.cli.edge import EdgeOptions
    from outrider.protocol.decoding.sampling import Sampling


def check(ctx: typer.Context, stops: Sequence[str]) -> None:
    """Refuse flags that cannot both be meant. Environment and file may hold what is not used.

    Raises:
        SettingError: names the two.
    """
    if any(not stop for stop in stops):
        raise SettingError("--stop is empty; it must be at least one character")
    rule = ctx.params.get("rule")
    if rule is judging.RuleName.RATIO and given_as_flag(ctx, "seed") and ctx.params["temp"]:
        logs.warn(
            "--rule ratio: a seed does not repeat the text. Whatever the seed, texts have the "
            "target's distribution, but which one comes depends on the drafter, how far it went "
            "ahead and so on the link; --rule coupled repeats it"
        )
    typed = given_as_flag(
        ctx, "draft", "draft_max", "draft_p_min", "drafter_backend", "threads", "policy"
    )
    if "--draft" in typed and ctx.params["draft"] is o.Draft.OFF and len(typed) > 1:
        if typed[1:] == ["--draft-max"] and ctx.params["draft_max"] == 0:
            return
        raise SettingError(f"--draft off and {typed[1]} contradict each other")


def sampling(params: Mapping[str, Any], seed: int) -> Sampling:
    """The sampling settings, with the seed that is to be used.

    Raises:
        SettingError: a value out of range.
    """
    from outrider.cli.prompt import parse_bias
    from outrider.protocol.decoding.combine import parse
    from outrider.protocol.decoding.sampling import Sampling

    collaborate = params["collaborate"]
    return Sampling(
        temperature=params["temp"],
        top_k=params["top_k"],
        top_p=params["top_p"],
        min_p=params["min_p"],
        repetition_penalty=params["repeat_penalty"],
        repetition_window=params["repeat_last_n"],
        presence_penalty=params["presence_penalty"],
        frequency_penalty=params["frequency_penalty"],
        logit_bias=parse_bias(params["logit_bias"] or ()),
        seed=seed,
        collaborate=parse(collaborate) if collaborate else None,
    )


def edge_options(params: Mapping[str, Any], *, offline: bool = False) -> EdgeOptions:
    """Where the cloud is and how to draft."""
    from outrider.cli.edge import EdgeOptions

    # A seed is to repeat the answer, which only this rule of the two can do.
    repeats = params["rule"] is judging.RuleName.AUTO and params["seed"] is not None
    return EdgeOptions(
        cloud=params["cloud"],
        api_key=params["api_key"],
        api_key_file=params["api_key_file"],
        tls_fingerprint=params["tls_fingerprint"],
        tls_ca=params["tls_ca"],
        **drafters.given(params["draft_model"], params["draft_key"], params["draft_key_file"]),
        drafter_backend=params["drafter_backend"].value,
        policy=params["policy"].value,
        decision_log=params["decision_log"],
        draft_max=0 if params["draft"] is o.Draft.OFF else params["draft_max"],
        draft_p_min=params["draft_p_min"],
        collaborate=params["collaborate"],
        rule="coupled" if repeats else params["rule"].value,
        ctx_size=params["ctx_size"],
        threads=params["threads"],
        reconnect=params["reconnect"],
        offline=offline,
    )
