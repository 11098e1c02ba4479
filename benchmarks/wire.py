"""``outrider bench wire``: bytes a token, counted, and what distributions on a budget buy.

Bytes are those of real frames, verdicts and messages, WebSocket framing included. Which rule wins
at which rate is predicted from measured acceptance and counted bytes for the large pair, and
measured in virtual time for the embedded one (``rules``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outrider.benchmarks import rules, virtual, wire_record
from outrider.benchmarks.cos import Models
from outrider.benchmarks.strategies import ADAPTIVE, MACHINES, Strategy, lockstep
from outrider.edge_client.forecast import Figures, cloud_alone, streaming
from outrider.protocol.codec import Codec
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sparse import Budget, quantize
from outrider.protocol.messages import Draft, EpochStart
from outrider.protocol.packing import frame_size
from outrider.simulator.profiles import profile
from outrider.simulator.traced import independent
from outrider.simulator.world import World

ANSWERS = 8
"""Of 100 tokens each, after one of 50."""

SIZE = 151_936
ALPHA = 0.8
TLS_RECORD, TCP_SEGMENT = 22, 40
"""Bytes that a message of its own costs below the WebSocket: an estimate."""

WEATHERS = 8
"""In how many sessions are counted: one differs from the next by a hundredth."""

RATES = (50e3, 100e3, 250e3, 500e3, 1e6, 5e6, 20e6, 100e6)
"""Uplink rates, bits a second."""

COUNTED = ("code", "story", "explanation")
"""Texts that the goal is about; others are reported."""

GOAL_SHARE = 0.97
"""Of the acceptance of full rows, on each of these texts: the cheapest rows that keep it."""
LENGTHS = (2, 3, 4, 6, 8)


def wire(note: Callable[[str], None], *, quick: bool = False) -> dict[str, Any]:
    """Everything. ``quick``: the codec is timed less often."""
    note("counting bytes of lockstep and adaptive sessions (virtual time, V = 151,936)")
    counted = _counted(ANSWERS)
    note("acceptance against bytes of the ratio rule (recorded rows)")
    record = wire_record.load()
    curve = _curve(record)
    ours = [row for row in curve if "worst_acceptance_over_full" in row]
    good = [row for row in ours if row["worst_acceptance_over_full"] >= GOAL_SHARE]
    best = min(good or ours, key=lambda row: row["bytes_up_per_token"])
    note("frames of 8 tokens with rows: encode and decode")
    encode, decode = _codec_times(record, 60 if quick else 300)
    lock = [row for row in counted if row["strategy"].startswith("lockstep")]
    by = {row["strategy"]: row for row in counted}
    return {
        "vocabulary_size": SIZE,
        "acceptance": ALPHA,
        "counted": counted,
        "bytes_up_per_token_lockstep": max(r["bytes_up_per_token"] for r in lock),
        "bytes_down_per_token_lockstep": max(r["bytes_down_per_token"] for r in lock),
        "bytes_up_per_token_latency": by["adaptive"]["bytes_up_per_token"],
        "bytes_down_per_token_latency": by["adaptive"]["bytes_down_per_token"],
        "bytes_up_per_token_cost": by["adaptive (cost)"]["bytes_up_per_token"],
        "bytes_down_per_token_cost": by["adaptive (cost)"]["bytes_down_per_token"],
        "pair": record["pair"],
        "ratio_curve": curve,
        "ratio_best": best,
        "ratio_bytes_up_per_token": best["bytes_up_per_token"],
        "ratio_acceptance_over_full": best["worst_acceptance_over_full"],
        "frame_of_8_encode_us": encode,
        "frame_of_8_decode_us": decode,
        "rules_by_uplink": _rules(record, best),
        "rules_measured": rules.measured(Models.load(), note, tokens=48 if quick else 96),
    }


# --- counted sessions ---------------------------------------------------------------------------


def _counted(answers: int) -> list[dict[str, Any]]:
    """Bytes of whole sessions after the handshake and the prompts, on lte, class (a)."""
    cost = replace(ADAPTIVE, name="adaptive (cost)", objective="cost")
    return [_session(s, answers) for s in (lockstep(4), lockstep(8), ADAPTIVE, cost)]


def _session(strategy: Strategy, answers: int, weathers: int = WEATHERS) -> dict[str, Any]:
    """One row: what was counted in all weathers together."""
    parts = [_counted_in(strategy, answers, seed) for seed in range(1, 1 + weathers)]
    tokens, sent, got = (sum(part[name] for part in parts) for name in ("tokens", "sent", "got"))
    up, down = (
        {kind: sum(part[way][kind] for part in parts) for kind in parts[0][way]}
        for way in ("up", "down")
    )
    extra = TLS_RECORD + TCP_SEGMENT
    return {
        "strategy": strategy.name,
        "link": "lte",
        "machine": "a",
        "tokens": tokens,
        "up": up,
        "down": down,
        "bytes_up_per_token": sum(up.values()) / tokens,
        "bytes_down_per_token": sum(down.values()) / tokens,
        "link_bytes_up_per_token": (sum(up.values()) + extra * sent) / tokens,
        "link_bytes_down_per_token": (sum(down.values()) + extra * got) / tokens,
        "exact": all(part["exact"] for part in parts),
    }


def _counted_in(strategy: Strategy, answers: int, seed: int) -> dict[str, Any]:
    """Bytes by kind each way, messages and tokens of one world."""
    worlds: list[World] = []
    before: dict[str, dict[str, int]] = {}

    def watch(world: World) -> None:
        """Keep the world, and what was sent before the first question."""
        worlds.append(world)
        traffic = world.edges[0].machine.traffic
        world.agenda.at(virtual.BEGIN - 0.01, lambda: before.update(traffic.figures()))

    found = virtual.run(
        strategy,
        MACHINES["a"],
        profile("lte").link(seed),
        independent(ALPHA),
        virtual.Load(answers=answers, tokens=100),
        seed=seed,
        vocabulary=SIZE,
        watch=watch,
    )
    edge = worlds[0].edges[0]
    traffic = edge.machine.traffic.figures()
    return {
        "tokens": sum(len(a.tokens) for user in edge.conversations for a in user.answers),
        "up": {k: traffic["up"][k] - before["up"][k] for k in ("frames", "control")},
        "down": {k: traffic["down"][k] - before["down"][k] for k in ("verdicts", "control")},
        "sent": edge.machine.traffic.messages_up,
        "got": edge.machine.traffic.messages_down,
        "exact": all(answer.exact for answer in found),
    }


# --- the ratio rule's curve ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spot:
    """One recorded position under one budget: what is accepted, and the row as sent."""

    accept: float
    row: SparseRow


def _spot(position: dict[str, Any], budget: Budget) -> Spot:
    ids = np.array(position["ids"], np.int64)
    q, p = np.array(position["q"]), np.array(position["p"])
    kept = q >= min(budget.floor, float(q.max()))
    kept[budget.keep :] = False
    row = quantize(ids[kept], q[kept], budget.levels)
    target = dict(zip(ids.tolist(), p.tolist(), strict=True))
    accept = sum(min(row.mass(token), target[token]) for token in row.ids)
    return Spot(float(accept), row)


def _curve(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Acceptance and bytes for rows of many sizes, each at its cheapest draft length, and others.

    Bytes are those of the dearest of the texts that count, the worst acceptance is of any of them.

    Expected over where frames begin: along the recorded text a frame of g is followed by another
    after as many tokens as it is expected to bring.
    """
    budgets = [Budget(k, levels) for k in (1, 2, 4, 6, 8, 16, 32) for levels in (16, 64, 256)]
    budgets += [Budget(16, 64, floor) for floor in (0.1, 0.05, 0.03, 0.02, 0.01)]
    budgets += [Budget(24, 32, floor) for floor in (0.05, 0.03, 0.02)]
    rows = []
    for budget in budgets:
        for length in LENGTHS:
            rows.append(_point(record, budget, length))
    best: dict[Budget, dict[str, Any]] = {}
    for budget, row in zip([b for b in budgets for _ in LENGTHS], rows, strict=True):
        known = best.get(budget)
        if known is None or row["bytes_up_per_token"] < known["bytes_up_per_token"]:
            best[budget] = row
    return [*best.values(), *_references(record)]


def _point(record: dict[str, Any], budget: Budget, length: int) -> dict[str, Any]:
    codec = Codec(record["vocabulary"])
    texts = {}
    for name, positions in record["texts"].items():
        spots = [_spot(position, budget) for position in positions]
        full = sum(position["full"] for position in positions)
        texts[name] = (
            sum(s.accept for s in spots) / full,
            _bytes_per_token(spots, codec, length),
            statistics.mean(len(s.row.ids) for s in spots),
        )
    counted = [texts[name] for name in COUNTED if name in texts]
    return {
        "kind": "threshold" if budget.floor else "fixed K",
        "keep": budget.keep,
        "levels": budget.levels,
        "floor": budget.floor,
        "length": length,
        "acceptance_over_full": statistics.mean(t[0] for t in counted),
        "worst_acceptance_over_full": min(t[0] for t in counted),
        "bytes_up_per_token": max(t[1] for t in counted),
        "ids_per_row": statistics.mean(t[2] for t in counted),
        "texts": {
            name: {"acceptance_over_full": a, "bytes_up_per_token": b}
            for name, (a, b, _) in texts.items()
        },
    }


def _bytes_per_token(spots: list[Spot], codec: Codec, length: int) -> float:
    """Uplink bytes of lockstep frames over the tokens that they bring, expected."""
    begins = [0.0] * (len(spots) + 1)
    begins[0], size, tokens = 1.0, 0.0, 0.0
    for i in range(len(spots) - length):
        part, here = spots[i : i + length], begins[i]
        if not here:
            continue
        frame = Draft(
            epoch=1,
            start=EpochStart(answer=1, base=300, digest=bytes(4)),
            tokens=tuple(s.row.ids[0] for s in part),
            rows=tuple(s.row for s in part),
            full=True,
        )
        size += here * frame_size(len(codec.encode(frame)), masked=True)
        alive = here
        for n, spot in enumerate(part):
            stop = alive * (1 - spot.accept)
            begins[i + n + 1] += stop
            tokens += (n + 1) * stop
            alive -= stop
        tokens += (length + 1) * alive
        begins[min(len(spots), i + length + 1)] += alive
    return size / tokens


def _references(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Top-K in half precision and full rows at a draft length of 4, by the size of their fields."""
    found = []
    for name, keep in (("top-8, fp16", 8), ("top-32, fp16", 32), ("full row, fp16", None)):
        shares, sizes = [], []
        for text in COUNTED:
            if text not in record["texts"]:
                continue
            positions = record["texts"][text]
            full = [position["full"] for position in positions]
            wide = Budget(keep or 32, 4096)
            accept = full if keep is None else [_spot(p, wide).accept for p in positions]
            a = statistics.mean(accept)
            run = (1 - a**5) / (1 - a)
            row = 2 * record["vocabulary"] if keep is None else keep * (18 + 16) / 8
            shares.append(sum(accept) / sum(full))
            sizes.append((4 * (row + 18 / 8) + 16) / run)
        found.append(
            {
                "kind": name,
                "length": 4,
                "acceptance_over_full": statistics.mean(shares),
                "bytes_up_per_token": statistics.mean(sizes),
            }
        )
    return found


# --- speed --------------------------------------------------------------------------------------


def _codec_times(record: dict[str, Any], times: int) -> tuple[float, float]:
    """Microseconds of processor time to encode and decode a frame of 8 tokens: K = 8, 64 levels."""
    codec = Codec(record["vocabulary"])
    positions = next(iter(record["texts"].values()))[:8]
    rows = tuple(_spot(position, Budget(8, 64)).row for position in positions)
    frame = Draft(epoch=1, tokens=tuple(row.ids[0] for row in rows), rows=rows)
    data = codec.encode(frame)
    assert codec.decode(data) == frame
    best = []
    for work in (lambda: codec.encode(frame), lambda: codec.decode(data)):
        taken = []
        for _ in range(times):
            began = time.process_time_ns()
            for _ in range(20):
                work()
            taken.append((time.process_time_ns() - began) / 20e3)
        best.append(statistics.median(taken))
    return best[0], best[1]


def _rules(record: dict[str, Any], best: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens a second of each rule by uplink rate, 60 ms round trip, class (a): predicted."""
    machine = MACHINES["a"]
    names = [name for name in COUNTED if name in record["texts"]]
    positions = [p for name in names for p in record["texts"][name]]
    coupled = statistics.mean(p["coupled"] for p in positions)
    full = statistics.mean(p["full"] for p in positions)
    ratio = full * best["acceptance_over_full"]
    row = 2 + (best["bytes_up_per_token"] * (1 - ratio ** (best["length"] + 1)) / (1 - ratio)
               - 20) / best["length"]  # fmt: skip
    whole = 2 * record["vocabulary"]
    found = []
    for rate in RATES:
        goodput = rate / 8
        # A frame's packets cost some 80 bytes whatever is in it.
        link = {"step": machine.draft_step, "target": machine.target_pass, "rtt": 0.06}
        speeds = {
            "coupled": _lockstep(coupled, 18 / 8, goodput, link),
            "ratio": _lockstep(ratio, row, goodput, link),
            # q(x) up, and at a refusal the target's whole distribution down, at the same rate.
            "residual at the edge": _lockstep(ratio, 18 / 8 + 2, goodput, link, whole / goodput),
        }
        figures = Figures(
            acceptance=coupled, step=machine.draft_step, target=machine.target_pass, rtt=0.06
        )
        free = max(streaming(figures), cloud_alone(figures))
        found.append(
            {
                "uplink_bits_per_second": rate,
                "predicted_tokens_per_second": speeds,
                "lockstep_winner": max(speeds, key=lambda name: speeds[name]),
                "coupled_streaming_or_cloud_alone": free,
                "winner": "coupled" if free >= max(speeds.values()) else max(
                    speeds, key=lambda name: speeds[name]
                ),
            }
        )  # fmt: skip
    return found


def _lockstep(
    alpha: float, each: float, goodput: float, link: dict[str, float], refused: float = 0.0
) -> float:
    """Tokens a second at the best draft length; ``each`` byte a guess, ``refused`` seconds more."""
    rates = []
    for length in range(1, 17):
        run = (1 - alpha ** (length + 1)) / (1 - alpha)
        sending = (80 + 16 + length * each) / goodput
        seconds = length * link["step"] + sending + link["rtt"] + link["target"]
        rates.append(run / (seconds + (1 - alpha**length) * refused))
    return max(rates)
