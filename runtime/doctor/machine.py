"""The machine: what the processor can do, how many cores, how warm, how much memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from outrider.runtime.doctor.check import Check, ok, warning
from outrider.runtime.lm import memory
from outrider.runtime.lm.memory import MIB

_CPUINFO = Path("/proc/cpuinfo")
_THERMAL = Path("/sys/class/thermal")
_BOARD = Path("/proc/device-tree/model")
_FAST = {
    "x86_64": ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni"),
    "aarch64": ("asimd", "asimddp", "i8mm", "sve", "bf16"),
}
_HELPS = {"x86_64": "avx2", "aarch64": "asimddp"}
HOT = 80.0
"""Degrees Celsius from which small boards slow down."""

LITTLE = 512 * MIB


def check_machine() -> Iterator[Check]:
    """Processor, cores, temperature, memory."""
    yield _processor()
    yield _cores()
    temperature = warmest()
    if temperature is not None:
        yield _warmth(temperature)
    yield _memory()


def flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """The instruction sets by the kernel's names; empty where the kernel does not tell."""
    try:
        text = cpuinfo.read_text("utf-8", "replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):  # x86, ARM
            return frozenset(value.split())
    return frozenset()


def _processor() -> Check:
    machine, found = platform.machine(), flags()
    named = [flag for flag in _FAST.get(machine, ()) if flag in found]
    says = f"{_board() or machine}: {', '.join(named) or 'no vector instructions known'}"
    missing = _HELPS.get(machine)
    if found and missing is not None and missing not in found:
        return warning(
            "processor",
            f"{says}; without {missing}, quantized models run several times slower",
            "use a smaller drafter, or plain cloud streaming (--draft off)",
            machine=machine,
            flags=named,
        )
    return ok("processor", says, machine=machine, flags=named)


def _board() -> str | None:
    try:
        return _BOARD.read_text("utf-8", "replace").strip("\0\n ") or None
    except OSError:
        return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cores() -> Check:
    count = cores()
    set_threads = os.environ.get("OMP_NUM_THREADS")
    if set_threads and set_threads.isdigit() and int(set_threads) > count:
        return warning(
            "cores",
            f"{count}, but OMP_NUM_THREADS is {set_threads}: threads would wait for each other",
            f"set OMP_NUM_THREADS to at most {count}",
            cores=count,
        )
    return ok("cores", f"{count}; give each model process one thread", cores=count)


def warmest(folder: Path = _THERMAL) -> float | None:
    """The highest temperature that a sensor tells, in degrees Celsius."""
    found = []
    for sensor in folder.glob("thermal_zone*/temp"):
        try:
            found.append(int(sensor.read_text("ascii")) / 1000)
        except (OSError, ValueError):
            continue
    return max(found, default=None)


def _warmth(temperature: float) -> Check:
    if temperature >= HOT:
        return warning(
            "temperature",
            f"{temperature:.0f} °C: the processor slows down when it is this warm",
            "cool it; drafting is measured all the time and adapts",
            celsius=temperature,
        )
    return ok("temperature", f"{temperature:.0f} °C", celsius=temperature)


def _memory() -> Check:
    free = memory.available()
    if free is None:
        return ok("memory", "this system does not tell how much is available", available=None)
    says = f"{free / MIB:,.0f} MiB available"
    if free < LITTLE:
        return warning("memory", says, "end other programs, or use a small drafter", available=free)
    return ok("memory", says, available=free)
