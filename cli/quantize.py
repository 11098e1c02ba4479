"""``outrider quantize``: from a checkpoint to a drafter that fits the device."""

from __future__ import annotations

import json as jsonlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from outrider.cli import exits, logs
from outrider.cli import options as o
from outrider.cli.bars import Bars
from outrider.cli.settings import Command

if TYPE_CHECKING:
    from outrider.runtime.lm.manifest import Manifest

_SOURCE = typer.Argument(
    help="A Hugging Face checkpoint folder, a GGUF file, or a model that was pulled."
)
_OUT = typer.Option("--out", "-o", help="The folder to write.")
_TEXT = typer.Option(
    "--text", help="Text to work with: .txt, .md, .jsonl or a folder. May be repeated."
)
MOST_THREADS = 256
_THREADS = typer.Option("--threads", "-t", min=1, max=MOST_THREADS, help="Processor threads.")
_EXTRA = {"help_option_names": ["--help", "-h"]}


class _PackByDefault(TyperGroup):
    """``outrider quantize FOLDER ...`` is ``outrider quantize pack FOLDER ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            args = ["pack", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


quantize = typer.Typer(
    cls=_PackByDefault,
    help="Make a drafter that fits the device: convert, quantize, distil, shrink, compare.",
    context_settings=_EXTRA,
)


@quantize.callback()
def _quantize() -> None:
    """Make a drafter that fits the device: convert, quantize, distil, shrink, compare.

    Example: outrider quantize ./SmolLM-135M --type Q4_K_M --onnx int8 --out ./pack
    """


@quantize.command("pack", cls=Command, context_settings=_EXTRA, epilog=exits.EPILOG)
def pack(
    source: Annotated[str, _SOURCE],
    *,
    out: Annotated[Path, _OUT],
    type: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="GGUF type: F32 F16 BF16 Q8_0 Q6_K Q5_K_M Q4_K_M Q4_0 IQ4_NL Q3_K_M Q2_K. May be "
            "repeated. Without --type and --onnx: Q4_K_M.",
        ),
    ] = None,
    onnx: Annotated[str, typer.Option("--onnx", help="Also an ONNX file: f32, int8 or int4.")] = "",
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            help="What the ONNX file is built for and runs on: cpu, cuda, dml, webgpu.",
        ),
    ] = "cpu",
    imatrix: Annotated[
        Path | None,
        typer.Option("--imatrix", help="Calibration text, by which quantization is weighed."),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", help="Carry this model's tokenizer and template.")
    ] = "",
    threads: Annotated[int, _THREADS] = 1,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Turn a checkpoint into a draft pack: drafter files, tokenizer, template, manifest.

    Run again after an interruption it goes on where it stopped.

    Example: outrider quantize ./SmolLM-135M --type Q4_K_M --onnx int8 --out ./pack
    """
    logs.configure(verbose)
    from outrider.quantize.checkpoint import read_checkpoint
    from outrider.quantize.folder import alone
    from outrider.quantize.gguf_quantize import check_kind
    from outrider.quantize.importance import measure_importance
    from outrider.quantize.pack import Order, make_pack, repack
    from outrider.quantize.text import read_texts
    from outrider.runtime.hub.resolve import resolve

    kinds = [check_kind(kind) for kind in type or ([] if onnx else ["Q4_K_M"])]
    found = resolve(source)
    if found.suffix == ".gguf":
        order = Order(kinds, onnx, provider, _weighed_by(imatrix), threads)
        with alone(out):
            made = repack(found, out, order, say=_say)
        _show(out, made, json=json)
        return
    checkpoint = read_checkpoint(found)
    bars = Bars()
    with alone(out), bars:
        importance = None
        if imatrix is not None:
            importance = measure_importance(
                checkpoint,
                read_texts(imatrix),
                progress=lambda done, whole: bars.report("importance matrix", done, whole),
            )
        order = Order(kinds, onnx, provider, importance, threads)
        made = make_pack(
            checkpoint,
            out,
            order,
            target=resolve(target, "target") if target else None,
            say=_say,
            progress=bars.report,
        )
    _show(out, made, json=json)


def _weighed_by(text: Path | None) -> dict[str, Any] | None:
    """An importance matrix that nobody measured: only that one was asked for."""
    return None if text is None else {}


def _show(out: Path, made: Manifest, *, json: bool) -> None:
    if json:
        import msgspec

        print(jsonlib.dumps({"path": str(out), **msgspec.to_builtins(made)}))
        return
    for part in made.parts:
        print(f"{out / part.name}  {part.bytes / (1 << 20):,.1f} MiB  {part.kind}")
        for note in part.notes:
            print(f"  {note}", file=sys.stderr)
    model = shlex.quote(str(out / made.parts[0].name))
    print(f"Use it: outrider run --draft-model {model} 'your prompt'")


@quantize.command("shrink", cls=Command, context_settings=_EXTRA, epilog=exits.EPILOG)
def shrink(
    source: Annotated[str, _SOURCE],
    *,
    out: Annotated[Path, _OUT],
    layers: Annotated[int, typer.Option("--layers", min=1, help="How many layers stay.")],
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Make a small checkpoint of a target that has no small sibling. Distil it afterwards.

    Example: outrider quantize shrink ./target --layers 4 --out ./small
    """
    logs.configure(verbose)
    from outrider.quantize.checkpoint import read_checkpoint
    from outrider.quantize.folder import alone
    from outrider.quantize.shrink import shrink as run
    from outrider.runtime.hub.resolve import resolve

    checkpoint = read_checkpoint(resolve(source))
    with alone(out):
        kept = run(checkpoint, out, layers)
    if json:
        print(jsonlib.dumps({"path": str(out), "layers": kept}))
        return
    print(f"{out}: layers {', '.join(map(str, kept))} of {source}")
    small, target, better = (shlex.quote(str(p)) for p in (out, source, f"{out}-distilled"))
    print(f"Next: outrider quantize distil {small} --target {target} --out {better}")


@quantize.command("distil", cls=Command, context_settings=_EXTRA, epilog=exits.EPILOG)
def distil(
    student: Annotated[str, typer.Argument(help="The drafter's checkpoint folder.")],
    *,
    target: Annotated[str, typer.Option("--target", help="The target's checkpoint folder.")],
    out: Annotated[Path, _OUT],
    text: Annotated[list[Path] | None, _TEXT] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="What the target goes on from (.txt, .jsonl).")
    ] = None,
    loss: Annotated[
        str, typer.Option("--loss", help="forward or reverse KL, tv, or mixed.")
    ] = "mixed",
    minutes: Annotated[float, typer.Option("--minutes", help="Time for it, sampling included.")] = (
        6.0
    ),
    on_policy: Annotated[
        float, typer.Option("--on-policy", help="Share of batches that the drafter writes itself.")
    ] = 0.0,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of the sampling.")] = 0,
    threads: Annotated[int, _THREADS] = 1,
    json: o.Json = False,
    verbose: o.Verbose = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Teach a drafter the target's distributions. Run again after an interruption it goes on.

    Example: outrider quantize distil ./drafter --target ./target --minutes 30 --out ./better
    """
    logs.configure(verbose)
    from outrider.protocol.errors import SettingError
    from outrider.quantize.distil import STATE_FILE, Settings
    from outrider.quantize.distil import distil as run
    from outrider.quantize.folder import alone
    from outrider.quantize.text import read_texts, token_blocks
    from outrider.runtime.hub.resolve import resolve
    from outrider.runtime.text.tokenizer import load_tokenizer

    teacher = resolve(target, "target")
    settings = Settings(
        loss, minutes, on_policy=on_policy, device=device, seed=seed, threads=threads
    )
    settings.check()
    tokenizer = load_tokenizer(teacher)
    texts = [one for path in text or [] for one in read_texts(path)]
    blocks = token_blocks(teacher, texts, settings.length, 1 << 24, tokenizer)
    if text and not blocks:
        raise SettingError(f"--text has less than the {settings.length} ids of a block")
    openings = [tokenizer.encode(one) for one in (read_texts(prompts) if prompts else [])]
    openings = [ids for ids in openings if ids]
    if prompts and not openings:
        raise SettingError(f"--prompts {prompts} has no prompt in it")
    drafter = resolve(student)
    bars = Bars()
    with alone(out), bars:
        try:
            done = run(
                drafter,
                teacher,
                out,
                settings,
                blocks=blocks,
                prompts=openings,
                watch=lambda now, whole, _step, _overlap: bars.report(
                    "distilling (s)", int(now), int(whole)
                ),
            )
        except KeyboardInterrupt:
            if (out / STATE_FILE).exists():
                _say(f"stopped; what was learned is in {out}: the same command goes on from there")
            raise
    if json:
        from dataclasses import asdict

        print(jsonlib.dumps({"path": str(out), **asdict(done)}))
        return
    print(
        f"{out}: sum(min(p, q)) {done.start:.3f} -> {done.end:.3f} on held-out "
        f"text of the target's ({done.steps} steps, {done.tokens:,} tokens, {done.seconds:.0f} s)"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr)
