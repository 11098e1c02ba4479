"""Trees of drafts: the ids of plain decoding, and caches that hold the path and nothing else.

Each tree is judged beside the plain target: one id a pass in another slot.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding import trees
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError, SettingError

MODELS = Path(__file__).parents[3] / "models"
PROMPT = [5, 900, 3000, 11, 7]
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1, seed=3),
    Sampling(temperature=1.5, seed=5),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, seed=4),
)


def load(kind):
    if kind == "scripted":
        return ScriptedTarget(vocabulary=4096, slots=3)
    if kind == "llama":
        pytest.importorskip("llama_cpp")
        from outrider.cloud_server.targets.llama_cpp import LlamaTarget

        return LlamaTarget.load(MODELS / "target/target-f16.gguf", slots=3, n_ctx=256, leaves=6)
    pytest.importorskip("torch")
    from outrider.cloud_server.targets.transformers import TransformersTarget

    return TransformersTarget.load(str(MODELS / "target"), slots=3, n_ctx=256, threads=1)


@pytest.fixture(
    scope="module",
    params=["scripted", "transformers", pytest.param("llama", marks=pytest.mark.llama)],
)
def target(request):
    target = load(request.param)
    yield target
    target.close()


def plain(target, sampling, length, prompt=PROMPT, slot=2):
    """One id a pass: (ids, margins) of ``length`` choices."""
    ids, margins = list(prompt), []
    for cut in range(len(prompt) - 1, len(prompt) - 1 + length):
        at = cut if margins else 0
        decided = target.forward([Row(slot, at, ids, 1, sampling, len(prompt))])[0]
        ids.append(decided.ids[0])
        margins.append(decided.margins[0])
    return ids[len(prompt) :], margins


def random_tree(rng, truth, nodes):
    """Nodes of which some are right; a wrong one has children too."""
    tokens, parents, right = [], [], {}
    for _ in range(nodes):
        parent = rng.randrange(-1, len(tokens))
        depth = right.get(parent, 0 if parent == -1 else None)
        token = truth[depth] if depth is not None and rng.random() < 0.6 else rng.randrange(4096)
        if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
            continue
        if depth is not None and token == truth[depth]:
            right[len(tokens)] = depth + 1
        parents.append(parent)
        tokens.append(token)
    return tokens, tuple(parents)


def few_ends(tokens, parents, most):
    """The same tree without its last nodes, until it has few enough ends."""
    while len(trees.leaves(parents)) > most:
        tokens, parents = tokens[:-1], parents[:-1]
    return tokens, parents


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm", "hot", "processed"])
def test_random_trees_give_what_plain_decoding_gives(target, sampling):
    rng = random.Random(1)
    truth, margins = plain(target, sampling, 60)
    done, cut, longest = 0, 0, 0
    while done < 48:
        tree, parents = random_tree(rng, truth[done:], rng.randrange(1, 12))
        tree, parents = few_ends(tree, parents, target.info.leaves)
        text = PROMPT + truth[:done]
        row = Row(0, cut, text + tree, 1 + len(tree), sampling, len(PROMPT), parents=parents)
        decided = target.forward([row])[0]
        count = len(decided.ids)
        assert list(decided.ids) == truth[done : done + count]
        assert decided.margins == pytest.approx(margins[done : done + count], abs=2e-3)
        assert row.passed(decided) == trees.follow(tree, parents, truth[done:])
        assert count == 1 + len(row.passed(decided))
        assert target.lengths()[0] == len(text) + count - 1
        longest = max(longest, count)
        # The next pass stands on the path that was kept: a cache that held another would show.
        cut, done = len(text) + count - 1, done + count
    assert longest > 3


def test_trees_beside_chains_and_prompts_in_one_pass(target):
    rng = random.Random(2)
    greedy, warm = SAMPLINGS[:2]
    truth = plain(target, greedy, 16)[0]
    other = plain(target, warm, 16, prompt=[9, 8, 7])[0]
    tree, parents = few_ends(*random_tree(rng, truth, 9), 4)
    twig, twigs = few_ends(*random_tree(rng, other, 6), 3)
    rows = [
        Row(1, 0, PROMPT + tree, 1 + len(tree), greedy, 5, parents=parents),
        Row(0, 0, [9, 8, 7, *twig], 1 + len(twig), warm, 3, parents=twigs),
        Row(2, 0, [9, 8, 7, *other[:3], 1], 5, warm, 3),
    ]
    found = target.forward(rows)
    assert list(found[0].ids) == truth[: len(found[0].ids)]
    assert list(found[1].ids) == other[: len(found[1].ids)]
    assert list(found[2].ids[:4]) == other[:4]
    assert len(found[0].ids) == 1 + len(trees.follow(tree, parents, truth))
    assert target.lengths() == [3 + len(found[1].ids) - 1, 5 + len(found[0].ids) - 1, 7]


def test_every_small_tree_over_a_tiny_vocabulary():
    """All trees of up to three nodes over three ids: what is kept is always the target's text."""
    target = ScriptedTarget(vocabulary=3, slots=2, peak=1.0)
    for sampling in (Sampling(), Sampling(temperature=1, seed=2)):
        truth = plain(target, sampling, 5, prompt=[1], slot=1)[0]
        taken = set()
        for n in (1, 2, 3):
            for parents in itertools.product(*(range(-1, i) for i in range(n))):
                for tokens in itertools.product(range(3), repeat=n):
                    if len(set(zip(parents, tokens, strict=True))) < n:
                        continue
                    row = Row(0, 0, [1, *tokens], 1 + n, sampling, 1, parents=parents)
                    decided = target.forward([row])[0]
                    taken.add(len(decided.ids))
                    assert list(decided.ids) == truth[: len(decided.ids)]
                    deepest = max(
                        depth + 1
                        for depth in range(-1, n)
                        if any(
                            [tokens[i] for i in trees.path(parents, node)] == truth[: depth + 1]
                            for node in range(-1, n)
                        )
                    )
                    assert len(decided.ids) == deepest + 1
        assert taken == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        ((-1, 1), "node 1 under node 1"),
        ((1, -1), "node 0 under node 1"),
        ((-2, 0), "node 0 under node -2"),
        ((-1, 0, 0), "wants 3 decisions of a tree of 3 nodes"),
    ],
    ids=["cycle", "parent ahead", "before the text", "count"],
)
def test_bad_trees_are_refused(parents, complaint):
    target = ScriptedTarget(vocabulary=8)
    with pytest.raises(BackendError, match=complaint):
        target.forward([Row(0, 0, [1, *range(len(parents))], 3, Sampling(), 1, parents=parents)])


def test_trees_under_the_ratio_rule_are_refused():
    target = ScriptedTarget(vocabulary=8)
    sampling = Sampling(temperature=1, ratio=True)
    rows = (SparseRow((2,), (4,)),)
    with pytest.raises(BackendError, match="ratio rule"):
        target.forward([Row(0, 0, [1, 2, 3], 3, sampling, 1, rows=rows, parents=(-1, -1))])


@pytest.mark.llama
def test_branches_are_bounded_on_llama():
    pytest.importorskip("llama_cpp")
    from outrider.cloud_server.targets.llama_cpp import LlamaTarget

    path = MODELS / "target/target-f16.gguf"
    with pytest.raises(SettingError, match="fixed width"):
        LlamaTarget.load(path, leaves=2, verify_width=4)
    target = LlamaTarget.load(path, slots=1, n_ctx=32)
    with pytest.raises(BackendError, match="2 ends; at most 1"):
        target.forward([Row(0, 0, [1, 2, 3], 3, Sampling(), 1, parents=(-1, -1))])
    target.close()
