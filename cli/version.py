"""``outrider version``: what is installed, without importing any of it."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from outrider.cli import options as o

LIBRARIES = (
    "msgspec", "numpy", "zstandard", "websockets", "tokenizers", "jinja2", "typer", "rich",
    "cryptography", "onnxruntime", "llama-cpp-python", "torch", "transformers", "safetensors",
)  # fmt: skip


def collect() -> dict[str, object]:
    """Versions by name; None for a library that is not there."""
    from outrider.protocol.messages import WIRE_VERSION

    return {
        "outrider": _version("outrider"),
        "wire": WIRE_VERSION,
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
    }


def version(
    *,
    json: o.Json = False,
    config: o.Config = None,  # noqa: ARG001 - its callback reads it
) -> None:
    """Print versions: Outrider's, the wire's, and those of the libraries found.

    Example: outrider version --json
    """
    found = collect()
    if json:
        from outrider.cli.report import print_json

        print_json(found)
        return
    libraries = found.pop("libraries")
    assert isinstance(libraries, dict)
    for name, value in (found | libraries).items():
        typer.echo(f"{name:18} {value if value is not None else 'not installed'}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
