"""The group with the embedded models: one general drafter and three specialists, real rows.

Target, drafters, routing and fusion are real; only time is virtual, paced as in
:mod:`outrider.benchmarks.cosine`. Prompts change their domain from answer to answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from outrider.benchmarks.cosine import ALL, Load, Way, run
from outrider.benchmarks.embedded import DOMAINS, models, prompts
from outrider.cloud_server.targets.base import Target
from outrider.edge_client.group.members import Member
from outrider.edge_client.group.routing import Similarity, same
from outrider.runtime.lm.drafter import Drafter
from outrider.runtime.text.tokenizer import Tokenizer, load_tokenizer

TREE_LEAVES = 24
NAMES = ("general", *DOMAINS)
WARM = 1.0


class EmbeddedKit:
    """The embedded models; prompts of all domains in turn, or of one."""

    def __init__(self, domain: int | None = None) -> None:
        self._domain = domain

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Shared by all of them."""
        return load_tokenizer(models() / "target")

    @property
    def vocabulary(self) -> int:
        """Its size."""
        return self.tokenizer.size

    def target(self, _seed: int, slots: int) -> Target:
        """On llama.cpp, which judges trees."""
        from outrider.cloud_server.targets.llama_cpp import LlamaTarget

        file = models() / "target" / "target-f16.gguf"
        return LlamaTarget.load(file, slots=slots, n_ctx=512, leaves=TREE_LEAVES)

    def members(self, _seed: int, owns: Sequence[int | None]) -> list[Member]:
        """General (None), or of a domain."""
        from outrider.runtime.lm.factory import load_lm

        files = [
            models() / "drafter" / "drafter-q8_0.gguf"
            if own is None
            else models() / "specialists" / f"{DOMAINS[own]}.gguf"
            for own in owns
        ]
        return [
            Member(file.stem, Drafter(load_lm(file, n_ctx=512).lm, self.vocabulary))
            for file in files
        ]

    def similarity(self) -> Similarity:
        """By the general drafter's embeddings."""
        from outrider.runtime.lm.embeddings import TokenEmbeddings

        found = TokenEmbeddings.open(models() / "drafter" / "drafter-q8_0.gguf")
        return found.similarity if found is not None else same

    def prompt(self, rng: random.Random, at: int) -> tuple[int, ...]:
        """One of the default prompts."""
        domain = DOMAINS[at % len(DOMAINS) if self._domain is None else self._domain]
        return tuple(self.tokenizer.encode_prompt(rng.choice(prompts(domain))))


def embedded(say: Callable[[str], object], *, quick: bool = False) -> dict[str, Any]:
    """Accepted lengths by drafter and domain, and of groups on mixed prompts."""
    tokens = 48 if quick else 96
    rows: list[dict[str, Any]] = []

    def measured(way: Way, kit: EmbeddedKit, turns: int) -> float:
        row = run(
            way, Load(edges=1, turns=turns), lan=0.001, temperature=WARM, tokens=tokens, kit=kit
        )
        say(f"embedded, {way.name}: {row['accept_len']:.2f} tokens a pass")
        rows.append(row)
        return float(row["accept_len"])

    def single(at: int, width: int = 1) -> Way:
        return Way(name=NAMES[at], members=(ALL[at],), most=1, width=width)

    own = {
        name: {
            domain: measured(single(at), EmbeddedKit(d), 2 if quick else 6)
            for d, domain in enumerate(DOMAINS)
        }
        for at, name in enumerate(NAMES)
    }
    mixed, turns = EmbeddedKit(), 6 if quick else 18
    chains = {name: measured(single(at), mixed, turns) for at, name in enumerate(NAMES)}
    best = max(chains, key=lambda name: chains[name])
    ways = {
        "best single with a tree": single(NAMES.index(best), width=4),
        "random group": Way(name="random group", route="random"),
        "without routing": Way(name="without routing", route="first"),
        "without fusion": Way(name="without fusion", fuse=False),
        "group of two": Way(name="group of two", most=2),
        "whole": Way(name="whole"),
        "all four": Way(name="all four", most=4),
    }
    groups = {name: measured(way, mixed, turns) for name, way in ways.items()}
    return {
        "temperature": WARM,
        "tokens": tokens,
        "by_domain": own,
        "mixed": chains | groups,
        "best_single": best,
        "accept_len_over_best_single": groups["whole"]
        / max(groups["best single with a tree"], chains[best]),
        "accept_len_over_general": groups["whole"] / chains["general"],
        "all_exact": all(row["exact"] for row in rows),
        "models": "the embedded ones, measured; time is virtual",
    }
