"""Writes ``messages.json``, the test vectors of the wire: ``python tests/data/wire/make.py``.

Run it only when the wire format changes on purpose, and say so in the change log: every byte that
differs afterwards is a peer that cannot be talked to any more.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec

from outrider.protocol import messages as m
from outrider.protocol.codec import Codec
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Collaboration, Combination, Sampling
from outrider.protocol.fingerprint import Fingerprint
from outrider.protocol.packing import TIME_UNIT, long_time

SIZE = 151_936
"""Usable ids of the vocabulary in the vectors: 18 bits an id."""

SESSION, SECRET = bytes(range(8)), bytes(range(16, 32))
DIGEST = bytes.fromhex("0a1b2c3d")
PRINT = Fingerprint(SIZE, bytes(16), bytes([1] * 16), bytes([2] * 16))
LIMITS = m.Limits(
    max_message=1 << 20,
    max_prompt=4095,
    max_tokens=1024,
    max_nodes_per_frame=64,
    max_nodes_in_flight=256,
    max_sessions=64,
    detached_seconds=120.0,
)
OPEN: dict[str, Any] = {"handle": 0, "session": SESSION, "secret": SECRET, "n": 1, "answer": 1}
OPEN |= {"base": 0, "digest": DIGEST, "prompt_len": 3, "max_tokens": 16}

MESSAGES: dict[str, m.Message] = {
    "draft of four": m.Draft(epoch=3, tokens=(9707, 11, 1879, 0)),
    "draft, first of its epoch": m.Draft(
        epoch=4, start=m.EpochStart(answer=1, base=300, digest=DIGEST), tokens=(151_935,)
    ),
    "draft, window full": m.Draft(epoch=4, tokens=(1, 2), full=True),
    "draft of another session": m.Draft(handle=300, epoch=255, tokens=(5,)),
    "draft tree": m.Draft(epoch=5, tokens=(7, 8, 9), deltas=(1, 2, 1)),
    "draft with rows": m.Draft(
        epoch=7,
        tokens=(11, 151_935),
        rows=(SparseRow((11, 1879, 9707), (9, 1, 6)), SparseRow((151_935,), (16,))),
    ),
    "draft, a proposal scored": m.Draft(
        epoch=7,
        tokens=(42, 11),
        rows=(SparseRow((151_935,), (16,)), SparseRow((11, 1879, 9707), (9, 1, 6))),
        full=True,
        scored=1,
    ),
    "draft, riding begins": m.Draft(epoch=6, start=m.EpochStart(answer=2, base=5, digest=DIGEST)),
    "draft, closing": m.Draft(epoch=6, more=False),
    "verdict, own guesses and a bonus": m.Verdict(answer=1, at=300, epoch=4, node=3, ids=(42,)),
    "verdict, recovered only": m.Verdict(answer=1, at=65_535, ids=(42, 151_935)),
    "verdict with times": m.Verdict(
        handle=1,
        answer=255,
        at=7,
        epoch=9,
        node=0,
        ack=m.Ack(
            frame=12,
            since=1000 * TIME_UNIT,
            queue=0.0,
            target=long_time(200),
            load=51 / 255,
        ),
    ),
    "verdict with proposals": m.Verdict(
        answer=1, at=300, ids=(42,), offered_after=1, offered=(9707, 11)
    ),
    "verdict with a cap": m.Verdict(answer=1, at=300, ids=(42,), cap=512.0),
    "hello": m.Hello(version=1, agent="outrider-edge", fingerprint=PRINT, max_message=4 << 20),
    "welcome": m.Welcome(
        version=1,
        agent="outrider-cloud",
        model="qwen",
        n_ctx=4096,
        eos=(151_645, 151_643),
        limits=LIMITS,
        same_template=True,
    ),
    "welcome, specials differ": m.Welcome(
        version=1,
        agent="c",
        model="m",
        n_ctx=64,
        eos=(),
        limits=LIMITS,
        same_template=False,
        specials={151_643: b"<|endoftext|>"},
        objective="cost",
        features=("x",),
    ),
    "welcome with pass times": m.Welcome(
        version=1,
        agent="c",
        model="m",
        n_ctx=64,
        eos=(),
        limits=LIMITS,
        same_template=True,
        pass_times=((1.0, 0.05), (2.5, 0.125)),
    ),
    "welcome of several models": m.Welcome(
        version=1,
        agent="c",
        model="m",
        n_ctx=64,
        eos=(),
        limits=LIMITS,
        same_template=True,
        collaborators=("math",),
    ),
    "welcome of a cluster": m.Welcome(
        version=1,
        agent="c",
        model="m",
        n_ctx=64,
        eos=(),
        limits=LIMITS,
        same_template=True,
        elsewhere=("wss://b.example:8471",),
    ),
    "mismatch": m.Mismatch(size=SIZE, segments=(bytes(8), bytes([255] * 8))),
    "segment asked": m.SegmentAsk(index=1),
    "segment": m.Segment(index=1, entries=(b"!", b"\xff", b"")),
    "goodbye": m.Goodbye(code="shutdown", message="the verifier is shutting down"),
    "attach": m.Attach(
        handle=0,
        session=SESSION,
        secret=SECRET,
        n=2,
        answer=1,
        epoch=4,
        length=310,
        digest=DIGEST,
    ),
    "open with ids": m.Open(**OPEN, ids=(9707, 11, 1879), stops=("\n\n",), templated=True),
    "open with messages": m.Open(**OPEN, messages=({"role": "user", "content": "Hi"},)),
    "open with text, sampled": m.Open(
        **OPEN,
        text="Once",
        sampling=Sampling(temperature=0.5, top_k=40, seed=2**63, logit_bias=((7, -1.5),)),
        ignore_eos=True,
        objective="balanced",
    ),
    "open, ratio rule": m.Open(
        **OPEN, ids=(9707, 11, 1879), sampling=Sampling(temperature=1.0, seed=7, ratio=True)
    ),
    "open, five models": m.Open(
        **OPEN,
        ids=(9707, 11, 1879),
        sampling=Sampling(
            collaborate=Collaboration(
                kind=Combination.ENSEMBLE,
                weight=0.5,
                edge=(0.25, 0.25),
                cloud=(("math", 0.25), ("law", 0.125)),
            )
        ),
        collaborators=("math", "law"),
    ),
    "opened": m.Opened(handle=0, answer=1, n=1, prompt_len=3, start=3, ids=(42,), cached=2),
    "attached": m.Attached(handle=0, answer=1, n=2, start=310, ids=(1, 2, 3)),
    "attached, nothing missed": m.Attached(handle=0, answer=1, n=2, start=310),
    "cancel": m.Cancel(handle=0, answer=1),
    "close": m.Close(handle=7),
    "finished": m.Finished(
        handle=0,
        answer=1,
        reason="stop",
        tokens=12,
        text_bytes=40,
        length=322,
        digest=DIGEST,
        passes=5,
    ),
    "refused": m.Refused(handle=0, answer=1, code="full", message="no room", retry_after=2.0),
    "open with log-probabilities": m.Open(**OPEN, ids=(9707, 11, 1879), logprobs=2),
    "open with a form and tools": m.Open(
        **OPEN,
        messages=({"role": "user", "content": "Hi"},),
        grammar='{"json": true}',
        tools=({"type": "function", "function": {"name": "f"}},),
    ),
    "log-probabilities": m.Logprobs(
        handle=0,
        answer=1,
        at=300,
        top=1,
        data=struct.pack("<fIffIf", -0.5, 42, -0.5, -2.25, 151_935, -0.125),
    ),
    "weigh": m.Weigh(handle=7, weight=1.5),
    "part": m.Part(last=True, data=b"\x8a\x90"),
}


def described(value: Any) -> Any:
    """A message as JSON: bytes as hex, structs with their type and the fields by name."""
    if isinstance(value, msgspec.Struct):
        fields = {name: described(getattr(value, name)) for name in value.__struct_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, SparseRow):
        return {"type": "SparseRow", "ids": list(value.ids), "counts": list(value.counts)}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, dict):
        return {"map": [[described(k), described(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return [described(item) for item in value]
    return value


def main() -> None:
    codec = Codec(SIZE)
    vectors = []
    for name, message in MESSAGES.items():
        data = codec.encode(message)
        assert codec.decode(data) == message, name
        vectors.append({"name": name, "message": described(message), "hex": data.hex()})
    about = (
        "Wire version 1. Written by `python tests/data/wire/make.py`, which says when to run it."
    )
    path = Path(__file__).with_name("messages.json")
    whole = {"about": about, "vocabulary_size": SIZE, "vectors": vectors}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
