"""The libraries that run models: there, of a version that works here, and alive.

Each is imported in a child process: a build for another processor ends with an illegal instruction,
which no ``except`` catches.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.runtime.doctor import child
from outrider.runtime.doctor.check import Check, ok, problem, warning
from outrider.runtime.extras import hint

_PROBE = """
import importlib, json, sys
module = importlib.import_module(sys.argv[1])
facts = {}
if sys.argv[1] == "onnxruntime":
    facts["providers"] = module.get_available_providers()
if sys.argv[1] == "llama_cpp":
    module.llama_backend_init()
    facts["features"] = module.llama_print_system_info().decode()
if sys.argv[1] == "torch":
    facts["sum"] = float(module.ones(8).sum())
print(json.dumps(facts))
"""


@dataclass(frozen=True, slots=True)
class Library:
    """A package, the module in it, the extra that installs it and what it is for."""

    package: str
    module: str
    extra: str
    purpose: str


DRAFTING = (
    Library("onnxruntime", "onnxruntime", "edge", "ONNX drafters"),
    Library("llama-cpp-python", "llama_cpp", "edge-llama", "GGUF drafters and targets"),
)
OTHERS = (
    Library("tokenizers", "tokenizers", "edge", "tokenizers of Hugging Face folders"),
    Library("torch", "torch", "cloud", "transformers targets"),
)


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A version that is known not to work on a kind of machine."""

    package: str
    version: str
    machine: str
    why: str
    do: str


KNOWN_BAD = (
    KnownBad(
        "onnxruntime",
        "1.21.",
        "aarch64",
        "ends with an illegal instruction on a Raspberry Pi 4",
        "pip install 'onnxruntime>=1.20,!=1.21.*'",
    ),
    KnownBad(
        "torch",
        "2.6.",
        "aarch64",
        "ends with an illegal instruction on a Raspberry Pi 4",
        "pip install 'torch!=2.6.*'; the edge does not need torch at all",
    ),
)


def check_libraries(needed: str | None = None) -> Iterator[Check]:
    """Each library that is installed; ``needed`` is the module that the draft model asks for."""
    working = []
    for library in DRAFTING:
        found = check_library(library, required=library.module == needed)
        if found.state != "problem" and found.facts.get("version"):
            working.append(library.module)
        yield found
    if not working:
        yield problem(
            "drafter backends",
            "no library here can run a drafter",
            f"{hint('edge')} (wheels only), or '.[edge-llama]' (compiles)",
        )
    for library in OTHERS:
        yield check_library(library, required=library.package == "tokenizers")


def check_library(library: Library, *, required: bool = False) -> Check:
    """One library: its version against what is known, then an import in a child."""
    name, install = library.package, hint(library.extra)
    version = version_of(library.package)
    if version is None:
        if required:
            return problem(name, f"not installed; needed for {library.purpose}", install)
        return ok(name, f"not installed (for {library.purpose}: {install})")
    outcome = child.run(_PROBE, library.module)
    facts = {"version": version, "killed_by": outcome.killed_by, **outcome.facts}
    bad = known_bad(library.package, version)
    if outcome.killed_by == "SIGILL":
        do = bad.do if bad else f"install a build for this processor: {_rebuild(library)}"
        return problem(name, f"{version} uses instructions that this CPU lacks", do, **facts)
    if outcome.failure is not None:
        return problem(
            name, f"{version} does not load: {outcome.failure}", _rebuild(library), **facts
        )
    if bad is not None:
        return warning(name, f"{version} loads here, but {bad.why}", bad.do, **facts)
    return ok(name, f"{version} loads; {library.purpose}", **facts)


def version_of(package: str) -> str | None:
    """The installed version, without importing anything."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def known_bad(package: str, version: str, machine: str | None = None) -> KnownBad | None:
    """Why this version is known not to work on this kind of machine."""
    machine = machine or platform.machine()
    for entry in KNOWN_BAD:
        same = entry.package == package and entry.machine == machine
        if same and version.startswith(entry.version):
            return entry
    return None


def _rebuild(library: Library) -> str:
    if library.module == "llama_cpp":
        return (
            "build it on this machine: pip install --force-reinstall --no-cache-dir "
            "--no-binary llama-cpp-python llama-cpp-python"
        )
    return f"pip install --force-reinstall '{library.package}'"
