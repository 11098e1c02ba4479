"""Compare drafters: agreement with the target, speed here, what to expect elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.devices import DEVICES, LINKS, MEMORY_SHARE, PASS, Device, expected_rate
from outrider.quantize.gguf_file import Progress, quiet
from outrider.runtime.hub.need import estimate
from outrider.runtime.lm.base import CausalLM
from outrider.runtime.lm.factory import load_lm

BLOCK = 128
"""Ids that are evaluated together."""

SPEED_STEPS = 48

Blocks = Mapping[str, Sequence[Sequence[int]]]
"""Blocks of ids, by domain."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Agreement with the target on one domain.

    ``greedy``: share of positions with the same likeliest id. ``overlap``: mean of sum(min(p, q)),
    the acceptance rate at temperature 1. ``kl``: mean of KL(p || q) in nats.
    """

    greedy: float
    overlap: float
    kl: float
    positions: int


@dataclass(slots=True)
class Variant:
    """One file of a pack. ``speed``: tokens a second here, by threads."""

    name: str
    bytes: int
    memory: int
    file: Path = Path()
    speed: dict[int, float] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)

    @property
    def greedy(self) -> float:
        """Agreement over all positions."""
        return _mean([(f.greedy, f.positions) for f in self.fits.values()])

    @property
    def overlap(self) -> float:
        """Overlap over all positions."""
        return _mean([(f.overlap, f.positions) for f in self.fits.values()])

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        best = max(self.speed.values(), default=0.0)
        return {
            "name": self.name,
            "bytes": self.bytes,
            "memory_bytes": self.memory,
            "tokens_per_second": best,
            "tokens_per_second_by_threads": {str(k): v for k, v in self.speed.items()},
            "greedy_agreement": self.greedy,
            "overlap": self.overlap,
            "kl": _mean([(f.kl, f.positions) for f in self.fits.values()]),
            "domains": {name: asdict(fit) for name, fit in self.fits.items()},
            "expected_tokens_per_second": {
                name: rates_on(self, device) for name, device in DEVICES.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant for a device, and why."""

    device: str
    variant: str
    memory: int
    rates: Mapping[str, float]
    why: str


def measure(
    files: Sequence[Path],
    target: CausalLM,
    blocks: Blocks,
    *,
    size: int,
    threads: Sequence[int] = (1,),
    progress: Progress = quiet,
) -> list[Variant]:
    """Measure every file against the target. ``size``: the ids of the tokenizer.

    Raises:
        SettingError: no text to measure on.
        BackendError: a file or the target does not load or run, or has another vocabulary.
    """
    if not any(blocks.values()):
        raise SettingError(f"no text of at least {BLOCK} ids to measure on")
    variants = [
        Variant(name, _size(file), estimate(file, 4096).total, file)
        for name, file in zip(labels(files), files, strict=True)
    ]
    sums: list[dict[str, NDArray[np.float64]]] = [{} for _ in files]
    models: list[CausalLM] = []
    whole = sum(len(rows) for rows in blocks.values())
    try:
        for file in files:
            models.append(load_lm(file, threads=max(threads)).lm)
        size = min(size, target.row_width)  # some tokenizers have more ids than their model
        for path, model in zip(files, models, strict=True):
            if model.row_width < size:
                raise BackendError(
                    f"{path} has {model.row_width} ids and the target {size}: they do "
                    "not share a vocabulary"
                )
        for number, (domain, ids) in enumerate(_each(blocks), 1):
            p = _log_softmax(_rows(target, ids), size)
            for held, model in zip(sums, models, strict=True):
                found = _compare(p, _log_softmax(_rows(model, ids), size))
                held[domain] = held.get(domain, np.zeros(4)) + found
            progress(number, whole)
    finally:
        for model in models:
            model.close()
    for variant, held, file in zip(variants, sums, files, strict=True):
        variant.fits = {domain: _fit(total) for domain, total in held.items()}
        variant.speed = {n: speed(file, n) for n in threads}
    return variants


def speed(file: Path, threads: int, steps: int = SPEED_STEPS) -> float:
    """Tokens a second of one-id steps: the median step of ``steps``."""
    lm = load_lm(file, n_ctx=min(256, 8 + 2 * steps), threads=threads).lm
    try:
        lm.feed([0] * 4)
        taken = []
        token = 1
        for _ in range(steps):
            began = time.perf_counter()
            row = lm.feed([token])[0]
            taken.append(time.perf_counter() - began)
            token = int(row.argmax())
    finally:
        lm.close()
    return 1.0 / float(np.median(taken))


def recommend(variants: Sequence[Variant], device: Device) -> Choice:
    """The variant with the highest expected rate, mean over the links, that fits the device.

    Raises:
        BackendError: none fits; says what the smallest needs.
    """
    room = int(device.memory * MEMORY_SHARE)
    fitting = [v for v in variants if v.memory <= room]
    if not fitting:
        least = min(variants, key=lambda v: v.memory)
        raise BackendError(
            f"no variant fits a {device.name}: the smallest, {least.name}, needs "
            f"{least.memory >> 20} MiB and a drafter may take {room >> 20} MiB there"
        )
    rates = {v.name: rates_on(v, device) for v in fitting}
    best = max(fitting, key=lambda v: (sum(rates[v.name].values()), -v.bytes))
    step = device.draft_seconds(best.bytes)
    why = (
        f"an estimate: about {1 / step:.0f} draft tokens a second from {best.bytes >> 20} MiB of "
        f"weights, acceptance {best.greedy:.2f}; {best.memory >> 20} MiB of {room >> 20} MiB"
    )
    if max(rates[best.name].values()) <= 1.0 / PASS:
        why += "; in lockstep no faster than plain cloud streaming with passes of 30 ms"
    if len(fitting) < len(variants):
        why += f"; {len(variants) - len(fitting)} variants do not fit"
    return Choice(device.name, best.name, best.memory, rates[best.name], why)


def rates_on(variant: Variant, device: Device) -> dict[str, float]:
    """Estimated tokens a second of the whole, by link: see :func:`expected_rate`."""
    step = device.draft_seconds(variant.bytes)
    return {link: expected_rate(variant.greedy, step, rtt) for link, rtt in LINKS.items()}


def _each(blocks: Blocks) -> Iterator[tuple[str, list[int]]]:
    for domain, rows in blocks.items():
        for row in rows:
            yield domain, list(row)


def _rows(lm: CausalLM, ids: list[int]) -> NDArray[np.float32]:
    lm.cut(0)
    return lm.feed(ids, len(ids))


def _log_softmax(rows: NDArray[np.float32], size: int) -> NDArray[np.float64]:
    x = rows[:, :size].astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def _compare(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of (equal choices, overlap, KL, 1) over the positions."""
    chance = np.exp(p)
    overlap = np.minimum(chance, np.exp(q)).sum(axis=-1).sum()
    kl = (chance * (p - q)).sum(axis=-1).sum()
    return np.array([(p.argmax(-1) == q.argmax(-1)).sum(), overlap, kl, len(p)], np.float64)


def _fit(total: NDArray[np.float64]) -> Fit:
    greedy, overlap, kl = (float(x / total[3]) for x in total[:3])
    return Fit(greedy, overlap, kl, int(total[3]))


def labels(files: Sequence[Path]) -> list[str]:
    """A name for each file; with as much of its path as it takes to tell it from the others."""
    paths = [file.resolve() for file in files]
    names = [
        f"{path.parent.name}/{path.name}" if path.suffix == ".onnx" else path.stem for path in paths
    ]
    for depth in range(1, max(len(path.parts) for path in paths) if paths else 0):
        twice = {name for name in names if names.count(name) > 1}
        names = [
            "/".join((*path.parts[-1 - depth : -1], path.name)) if name in twice else name
            for name, path in zip(names, paths, strict=True)
        ]
    return names


def _size(file: Path) -> int:
    return sum(part.stat().st_size for part in file.parent.glob(f"{file.name}*"))


def _mean(pairs: Sequence[tuple[float, int]]) -> float:
    whole = sum(count for _, count in pairs)
    return sum(value * count for value, count in pairs) / whole if whole else 0.0
