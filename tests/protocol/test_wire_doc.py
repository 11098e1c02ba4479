"""The page that describes the wire says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outrider.protocol import admission, codec, edge, edge_session, messages, outbox, session
from outrider.protocol import cloud as cloud_module
from outrider.protocol.codec import COLD_TYPES, Codec
from outrider.protocol.decoding.noise import gumbel, noise_bits
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.messages import Draft, Limits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, headings and rules left out."""
    found = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in found if not row[0].strip().startswith("---")]


def section(title: str) -> str:
    match = re.search(rf"^#+ {re.escape(title)}.*?$(.*?)(?=^#|\Z)", PAGE, re.M | re.S)
    assert match is not None, title
    return match[1]


@pytest.mark.parametrize("code", range(len(COLD_TYPES)))
def test_fields_of_cold_messages(code: int) -> None:
    kind = COLD_TYPES[code]
    table = rows(section(f"{code} {kind.__name__}"))
    assert [row[0] for row in table] == ["field", *kind.__struct_fields__]


def test_nested_fields_are_listed() -> None:
    assert ", ".join(Limits.__struct_fields__) in PAGE
    assert ", ".join(Sampling.__struct_fields__) in PAGE


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Draft", ("START", "MORE", "TREE", "ROWS", "FULL")),
        ("Verdict", ("NODE", "IDS", "ACK", "OFFER", "CAP")),
    ],
)
def test_flags(title: str, names: tuple[str, ...]) -> None:
    said = {row[1]: int(row[0].strip("`"), 16) for row in rows(section(title)) if "`0x" in row[0]}
    assert said == {name: getattr(codec, name) for name in ("HANDLE", *names)}


def test_examples_are_the_vectors() -> None:
    path = ROOT / "tests" / "data" / "wire" / "messages.json"
    vectors = json.loads(path.read_text(encoding="utf-8"))["vectors"]
    said = {row[0]: row[1].strip("`") for row in rows(section("Examples"))[1:]}
    assert said == {vector["name"]: vector["hex"] for vector in vectors}
    wire = Codec(151_936)
    for data in said.values():
        wire.decode(bytes.fromhex(data))
    first = next(iter(said.values()))
    assert wire.decode(bytes.fromhex(first)) == Draft(epoch=3, tokens=(9707, 11, 1879, 0))


def test_every_code_is_listed() -> None:
    said = {row[0] for row in rows(section("Errors"))[1:]}
    assert len(said) == len(rows(section("Errors"))) - 1
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "protocol").glob("*.py"))
    used = set(re.findall(r'code(?:: str)? ?= ?"(\w+)"', source))
    assert used <= said
    # The driver's own, beside those of the protocol.
    assert said - used == {"shutdown", "idle"}


def test_numbers() -> None:
    limits = section("Limits")
    assert f"| {codec.MAX_FRAME_COUNT} (the codec)" in limits
    assert f"before the welcome | {messages.LEAST_FRAME_NODES} |" in limits
    assert f"before the welcome | {messages.LEAST_IN_FLIGHT} |" in limits
    assert f"| {session.MAX_VERDICT_IDS} |" in limits
    assert f"| {outbox.PART_BYTES} at most |" in limits
    assert f"at most {admission.MAX_STOPS} of {admission.MAX_STOP_CHARS} characters" in PAGE
    assert f"after {cloud_module.HELLO_SECONDS:.0f} seconds is closed" in PAGE.replace("\n", " ")
    assert f"up after {edge.GREETING_SECONDS:.0f}." in PAGE
    assert edge_session.MAX_RESTORES == 3
    assert "three times in a row at most" in PAGE
    assert f"From {codec.COMPRESS_FROM}" in PAGE


def test_noise_example() -> None:
    assert f"bits = {int(noise_bits(42, 0, 17, [151_935])[0]):#x}" in PAGE
    said = re.search(r"`G = ([\d.]+)`", PAGE)
    assert said is not None
    assert gumbel(42, 0, 17, [151_935])[0] == pytest.approx(float(said[1]), abs=1e-12)
