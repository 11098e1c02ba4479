"""Constrained text on a tiny vocabulary: what is allowed, by enumeration, and what is chosen.

The forms here have few texts, so that what may follow is known by looking at all of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

pytest.importorskip("llguidance")

from outrider.cloud_server.engine import CloudEngine, Forward
from outrider.cloud_server.grammar import Constraint, Grammars
from outrider.cloud_server.replay import plain
from outrider.cloud_server.targets.base import Row
from outrider.cloud_server.targets.rows import decide_rows
from outrider.cloud_server.targets.scripted import ScriptedTarget
from outrider.protocol.decoding.noise import Domain, gumbel
from outrider.protocol.decoding.row import SparseRow
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.edge_session import Phase
from outrider.protocol.events import AnswerEnded
from outrider.protocol.fingerprint import Vocabulary
from outrider.protocol.request import Request
from outrider.simulator.pair import ConnectionPair, config

WORDS = [b"", b"{", b"}", b'"a"', b'"b"', b":", b"1", b"11", b",", b"true", b'{"a":', b"tr"]
WORDS += [b"ue", b"1", b"", b"1}", b"<", b"c>", b"y", b"<c", b">", b"x", b"[", b"]", b"[1"]
EOS = frozenset({0, 14})
SIZE = len(WORDS)
PROMPT = (21, 3, 5)

OBJECT = {
    "type": "object",
    "properties": {"a": {"enum": [1, 11]}, "b": {"const": True}},
    "required": ["a"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 3}
FORMS: dict[str, tuple[str, list[str]]] = {
    "object": (
        json.dumps({"json": OBJECT}),
        ['{"a":1}', '{"a":11}', '{"a":1,"b":true}', '{"a":11,"b":true}'],
    ),
    "list": (json.dumps({"json": LIST}), ["[1]", "[1,1]", "[1,1,1]"]),
    "call": (
        json.dumps({"json": {"enum": [1, 11]}, "before": "<c>", "after": "<c>"}),
        ["<c>1<c>", "<c>11<c>"],
    ),
}


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(WORDS[t] for t in tokens).decode()


def allowed(texts: Sequence[str], output: Sequence[int]) -> set[int]:
    """By looking at every text of the form."""
    if any(token in EOS for token in output):
        return set()
    so_far = text_of(output)
    found = {
        i
        for i, word in enumerate(WORDS)
        if word and any(text.startswith(so_far + word.decode()) for text in texts)
    }
    return found | (set(EOS) if so_far in texts else set())


def prefixes(texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Every sequence of tokens that may stand at the beginning of an answer."""
    found: list[tuple[int, ...]] = []
    todo: list[tuple[int, ...]] = [()]
    while todo:
        output = todo.pop()
        found.append(output)
        todo += [(*output, token) for token in sorted(allowed(texts, output) - EOS)]
    return found


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(WORDS, EOS)


@pytest.mark.parametrize(("form", "texts"), FORMS.values(), ids=FORMS)
def test_what_is_allowed(grammars, form, texts) -> None:
    """At every position of every text of the form; asked in any order, of one object."""
    constraint = grammars.constraint(form)
    asked = prefixes(texts)
    wrong = [(*p, t) for p in asked for t in set(range(SIZE)) - allowed(texts, p)]
    random.Random(1).shuffle(asked)
    for output in (*asked, *reversed(asked)):
        mask = constraint.allowed(output)
        assert mask is not None, output
        assert set(np.flatnonzero(mask)) == allowed(texts, output), output
    for output in random.Random(2).sample(wrong, min(200, len(wrong))):
        assert constraint.allowed(output) is None, output
        assert constraint.allowed(output[:-1]) is not None
    assert constraint.error is None
    assert len(asked) > 10


def test_repeated_pieces() -> None:
    """One a line; here is a token for the end of a line."""
    grammars = Grammars([*WORDS[:18], b"\n", *WORDS[19:]], EOS)
    form = json.dumps({"json": {"const": 1}, "before": "<c>", "many": True})
    constraint = grammars.constraint(form)
    once = [19, 20, 6]
    for output, follows in (
        ([], {16, 19}),
        (once, {0, 14, 18}),
        ([*once, 18], {16, 19}),
        ([*once, 18, *once], {0, 14, 18}),
    ):
        mask = constraint.allowed(output)
        assert mask is not None
        assert set(np.flatnonzero(mask)) == follows, output


# --- the rule -----------------------------------------------------------------------------------

SAMPLINGS = [
    Sampling(),
    Sampling(logit_bias=((6, 3.0), (21, 50.0))),
    Sampling(temperature=0.8, seed=5),
    Sampling(temperature=1.5, top_k=2, seed=9),
]


def slowly(row: Sequence[float], may: set[int], sampling: Sampling, position: int) -> int:
    """The target's choice among what is allowed, by the definitions."""
    bias = dict(sampling.logit_bias)
    scores = {t: float(row[t]) + bias.get(t, 0.0) for t in may}
    if sampling.temperature > 0:
        scores = {t: z / sampling.temperature for t, z in scores.items()}
        order = sorted(scores, key=lambda t: (-scores[t], t))
        kept = order[: sampling.top_k or len(order)]
        noise = gumbel(sampling.seed, sampling.choice, position, np.arange(SIZE), Domain.COUPLED)
        scores = {t: scores[t] + float(noise[t]) for t in kept}
    return min(scores, key=lambda t: (-scores[t], t))


@pytest.mark.parametrize("on_device", [False, True], ids=["numpy", "torch"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "bias", "coupled", "top-k"])
def test_every_choice_is_the_targets_among_what_is_allowed(grammars, sampling, on_device) -> None:
    """After every prefix of every text, with every guess that could stand there."""
    decide: Callable = decide_rows
    if on_device:
        torch = pytest.importorskip("torch")
        from outrider.cloud_server.targets.torch_rows import decide_on_device

        def decide(rows, logits, usable):
            return decide_on_device(rows, [torch.tensor(np.array(z)) for z in logits], usable)

    rng = np.random.default_rng(3)
    form, texts = FORMS["object"]
    constraint = grammars.constraint(form)
    for output in prefixes(texts):
        guesses = rng.permutation(SIZE)[:6].tolist()
        logits = (rng.standard_normal((2, SIZE + 3)) * 2).astype(np.float32)
        logits[:, SIZE:] = 99.0  # padding
        for guess in guesses:
            ids = [*PROMPT, *output, guess]
            row = Row(0, 0, ids, 2, sampling, len(PROMPT), constraint=constraint)
            (made,) = decide([row], [list(logits)], SIZE)
            first = slowly(logits[0], allowed(texts, output), sampling, len(ids) - 1)
            assert made.ids[0] == first
            if guess == first and guess not in EOS:
                may = allowed(texts, (*output, guess))
                assert made.ids[1] == slowly(logits[1], may, sampling, len(ids))


@pytest.mark.parametrize("on_device", [False, True], ids=["numpy", "torch"])
def test_under_the_ratio_rule_a_forbidden_draft_is_refused(grammars, on_device) -> None:
    """Whatever it was drawn from; and what comes in its place has the law of what is allowed."""
    decide: Callable = decide_rows
    if on_device:
        torch = pytest.importorskip("torch")
        from outrider.cloud_server.targets.torch_rows import decide_on_device

        def decide(rows, logits, usable):
            return decide_on_device(rows, [torch.tensor(np.array(z)) for z in logits], usable)

    constraint = grammars.constraint(FORMS["object"][0])
    logits = np.zeros((2, SIZE), np.float32)
    logits[0, 10] = np.log(3.0)  # {"a": is three times as likely as {
    seen = {1: 0, 10: 0}
    for seed in range(300):
        sampling = Sampling(temperature=1.0, seed=seed, ratio=True)
        drawn = SparseRow((21,), (16,)) if seed % 2 else SparseRow((10, 21), (8, 8))
        token = 21 if seed % 4 else drawn.ids[0]
        row = Row(0, 0, [*PROMPT, token], 2, sampling, 3, rows=(drawn,), constraint=constraint)
        (made,) = decide([row], [list(logits)], SIZE)
        seen[made.ids[0]] += 1
        if token == 21:
            assert len(made.ids) == 1
    assert set(seen) == {1, 10}


# --- whole answers ------------------------------------------------------------------------------


class Scene:
    """Both machines and an engine, with a text that must be of a form."""

    def __init__(self, grammars: Grammars, seed: int) -> None:
        cloud = config(Vocabulary(tuple(f"t{i}".encode() for i in range(SIZE)), {}, None))
        cloud.constrain = grammars.check
        cloud.trees = True
        self.pair = ConnectionPair(cloud)
        self.target = ScriptedTarget(vocabulary=SIZE, seed=seed, peak=0.0, n_ctx=200)
        self.grammars = grammars
        self.boot()
        self.pair.connect()
        self.pair.settle()

    def boot(self) -> None:
        """A verifier that knows nothing."""
        self.pair.table.sessions.clear()
        self.target.cached = [[] for _ in self.target.cached]
        self.engine = CloudEngine(
            self.pair.table,
            self.target.info,
            EOS,
            WORDS.__getitem__,
            grammars=Grammars(WORDS, EOS),
        )

    def step(self) -> None:
        self.pair.now += 0.5
        work = self.engine.next(self.pair.now)
        if isinstance(work, Forward):
            self.engine.done(work, work.run(self.target), self.pair.now)


def constrained(target: ScriptedTarget, texts: Sequence[str], sampling: Sampling) -> list[int]:
    """What the target alone says, held to the form by hand."""
    ids = list(PROMPT)
    while ids[-1] not in EOS or len(ids) == len(PROMPT):
        may = allowed(texts, ids[len(PROMPT) :])
        ids.append(slowly(target.row(ids), may, sampling, len(ids)))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("sampling", SAMPLINGS[::2], ids=["greedy", "coupled"])
@pytest.mark.parametrize(("form", "texts"), FORMS.values(), ids=FORMS)
def test_answers(grammars, form, texts, sampling) -> None:
    """Guesses right, wrong and forbidden, chains and trees; lost links and lost clouds."""
    ends, accepted = set(), 0
    for seed in range(25):
        rng = random.Random(seed)
        scene = Scene(grammars, seed)
        truth = constrained(scene.target, texts, sampling)
        alone = plain(
            ScriptedTarget(vocabulary=SIZE, seed=seed, peak=0.0, n_ctx=200),
            PROMPT,
            sampling,
            50,
            lambda output: output[-1] in EOS,
            constraint=grammars.constraint(form),
        )
        assert alone == truth
        pair = scene.pair
        session = pair.machine.session()
        asked = Request(max_tokens=50, ids=PROMPT, sampling=sampling, grammar=form)
        pair.machine.open(session, asked)
        events = pair.settle()
        for _ in range(200):
            if session.phase is Phase.IDLE:
                break
            roll = rng.random()
            if roll < 0.5 and session.may_guess:
                here = session.emitted + len(session.window.ahead)
                right = truth[here : here + rng.randrange(4)]
                chain = [*right, rng.randrange(SIZE), rng.randrange(SIZE)]
                if rng.random() < 0.3 and chain[0] != chain[-1]:
                    tree = [-1, *range(len(chain) - 2), -1]
                    session.guess(chain, parents=tree)
                else:
                    session.guess(chain)
            elif roll < 0.6:
                pair.lose()
                if rng.random() < 0.5:
                    scene.boot()
                pair.connect()
            events += pair.settle()
            scene.step()
            events += pair.settle()
        assert session.ids[len(PROMPT) :] == truth
        assert text_of(truth) in texts
        ends |= {e.reason for e in events if isinstance(e, AnswerEnded)}
        accepted += session.nodes_accepted
    assert ends == {"stop"}
    assert accepted > 10


def test_the_limit_cuts_it(grammars) -> None:
    scene = Scene(grammars, 1)
    form, texts = FORMS["object"]
    truth = constrained(scene.target, texts, Sampling())
    session = scene.pair.machine.session()
    scene.pair.machine.open(session, Request(max_tokens=2, ids=PROMPT, grammar=form))
    scene.pair.settle()
    for _ in range(4):
        scene.step()
        scene.pair.settle()
    assert session.ids[len(PROMPT) :] == truth[:2]


def test_a_form_that_gets_too_complex_ends_its_answer_alone(grammars, monkeypatch) -> None:
    scene = Scene(grammars, 1)
    pair = scene.pair
    bad, good = pair.machine.session(), pair.machine.session()
    form, texts = FORMS["list"]
    for session in (bad, good):
        pair.machine.open(session, Request(max_tokens=20, ids=PROMPT, grammar=form))
    pair.settle()
    usual = Constraint.allowed

    def failing(self: Constraint, output: Sequence[int]):
        if scene.engine.grammars.of(pair.cloud_session(bad)) is self:
            self.error = "lexer ran out of fuel"
            return None
        return usual(self, output)

    monkeypatch.setattr(Constraint, "allowed", failing)
    events = []
    for _ in range(12):
        scene.step()
        events += pair.settle()
    ends = {e.session: e.reason for e in events if isinstance(e, AnswerEnded)}
    assert ends == {bad: "error: its form is too complex: lexer ran out of fuel", good: "stop"}
    assert good.ids[len(PROMPT) :] == constrained(scene.target, texts, Sampling())
