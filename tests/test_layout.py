"""The folders, the build's list of packages and the rules about them agree."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 400
NOT_PACKAGES = {"tests", "docs", "examples", "typings", "scripts", "build", "dist", "docker"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def folders() -> dict[str, Path]:
    """Every package by its import name, found on disk."""
    found = {}
    for init in ROOT.rglob("__init__.py"):
        relative = init.parent.relative_to(ROOT)
        if relative.parts[0] not in NOT_PACKAGES and not relative.parts[0].startswith("."):
            found[".".join(("outrider", *relative.parts))] = init.parent
    return found


def sources() -> list[Path]:
    tops = [*{path for name, path in folders().items() if name.count(".") == 1}, ROOT / "tests"]
    return sorted(file for top in tops for file in top.rglob("*.py"))


def test_the_build_lists_every_package() -> None:
    assert sorted(project()["tool"]["setuptools"]["packages"]) == sorted(folders())


def test_top_level_packages_are_mapped_and_linked() -> None:
    tops = {name: path for name, path in folders().items() if name.count(".") == 1}
    mapped = project()["tool"]["setuptools"]["package-dir"]
    assert mapped == {name: path.name for name, path in tops.items()}
    links = {link.name: link.resolve() for link in (ROOT / "typings" / "outrider").iterdir()}
    assert links == {path.name: path for path in tops.values()}


def test_the_namespace_has_no_code_of_its_own() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "typings" / "outrider" / "__init__.py").exists()


def test_every_package_is_typed() -> None:
    missing = [name for name, path in folders().items() if not (path / "py.typed").is_file()]
    assert missing == []


def test_import_rules_cover_every_package() -> None:
    tops = {name for name in folders() if name.count(".") == 1}
    rules = project()["tool"]["importlinter"]
    assert set(rules["root_packages"]) == tops
    for contract in rules["contracts"]:
        if contract["name"].startswith(("Only", "llama.cpp", "ONNX")):
            assert set(contract["source_modules"]) == tops, contract["name"]


def test_types_are_checked_in_every_package() -> None:
    tops = {name for name in folders() if name.count(".") == 1} - {"outrider.models"}
    assert tops <= set(project()["tool"]["mypy"]["packages"])


def test_no_file_hides_a_noun() -> None:
    long = {
        str(file.relative_to(ROOT)): count
        for file in sources()
        if (count := len(file.read_text("utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_no_code_is_left_out_of_the_packages() -> None:
    """A module in a folder without ``__init__.py`` would be missing from the wheel."""
    packages = set(folders().values())
    tops = {path for name, path in folders().items() if name.count(".") == 1}
    # How the models were made is a set of scripts, to be run from the repository.
    stray = [
        str(file.relative_to(ROOT))
        for top in tops
        for file in top.rglob("*.py")
        if file.parent not in packages and file.parent != ROOT / "models" / "make"
    ]
    assert stray == []


@pytest.mark.parametrize("package", ["protocol", "runtime", "edge_client"])
def test_no_relative_imports(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), file


# What a bare import may not load: whoever lacks one of these can use everything else. Left out are
# the backends in cloud_server.targets, imported by name once one of them is chosen, and the
# learner in simulator.cell, which is a torch program.
HEAVY = {"torch", "transformers", "llama_cpp", "onnxruntime", "ray", "sionna"}
WALK = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith(("__main__", ".masac")) and ".targets." not in module.name:
            importlib.import_module(module.name)
"""


def loaded(program: str, *arguments: str) -> set[str]:
    """Give the top-level modules that a fresh interpreter holds after running a program."""
    show = "\nimport sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    run = subprocess.run(
        [sys.executable, "-c", program + show, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


def test_the_protocol_is_pure() -> None:
    assert loaded(WALK, "outrider.protocol").isdisjoint(
        {"asyncio", "websockets", "tokenizers", *HEAVY}
    )


@pytest.mark.parametrize(
    "package", ["runtime", "edge_client", "cloud_server", "simulator", "cli", "benchmarks"]
)
def test_importing_loads_no_model_library(package: str) -> None:
    assert loaded(WALK, f"outrider.{package}").isdisjoint(HEAVY)


def test_the_command_line_starts_light() -> None:
    found = loaded("import outrider.cli.main")
    assert found.isdisjoint({"websockets", "tokenizers", "numpy", "huggingface_hub", *HEAVY})


def test_the_pins_cover_what_is_asked_for() -> None:
    """Each dependency that is named has an exact version in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    table = project()["project"]
    asked = [*table["dependencies"], *chain.from_iterable(table["optional-dependencies"].values())]
    names = {
        "".join(part if part.isalnum() or part in "-_." else " " for part in line).split()[0]
        for line in asked
    }
    missing = {name.lower().replace("_", "-") for name in names if name != "outrider"} - pinned
    assert missing == set()


def test_the_weights_that_come_along() -> None:
    """The pair, its drafter as it was before distillation, and small specialists beside it."""
    kinds = (".gguf", ".onnx", ".safetensors")
    weights = {
        file.relative_to(ROOT / "models"): file.stat().st_size
        for file in (ROOT / "models").rglob("*")
        if file.suffix in kinds and "make" not in file.parts
    }
    assert (
        Path("drafter/before-distillation/model.safetensors") in weights
    )  # distilling is measured
    special = {file: size for file, size in weights.items() if file.parts[0] == "specialists"}
    assert all(size < 2e6 for size in special.values())
    assert sum(weights.values()) - sum(special.values()) < 30e6
