"""Members on other machines: real sockets and models, many leads, bad input, ends and returns."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import msgspec
import numpy as np
import pytest

from outrider.edge_client.group import remote
from outrider.edge_client.group.group import Group, GroupSettings
from outrider.edge_client.group.members import Member, Table
from outrider.edge_client.group.remote import Lan
from outrider.edge_client.group.turns import CHUNK
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.drafting import (
    Failed,
    Forget,
    Greet,
    Greeted,
    Named,
    Proposed,
    Refused,
    Step,
    Terms,
    decode,
    encode,
    proposals,
)
from outrider.protocol.errors import AwayError, BackendError, DecodeError, HandshakeError, LinkError
from outrider.runtime.lm.drafter import Drafter, Standing
from outrider.runtime.lm.factory import load_lm
from outrider.runtime.net.client import connect
from outrider.runtime.net.keys import KeyFile
from outrider.runtime.net.server import serve
from tests.edge_client.group.conftest import until

PACK = Path(str(files("outrider.models"))) / "drafter"
NOBODY: frozenset[int] = frozenset()
GREEDY = Sampling()
CHEAP = Standing(price=0.0)


class Gated:
    """Sequences whose passes wait until they may go on, and are counted."""

    count, n_ctx, name, row_width, how = 4, 512, "gated", 4096, "in one batch"

    def __init__(self) -> None:
        self.gate, self.began = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.held: list[list[int]] = [[] for _ in range(self.count)]

    def ids(self, seq):
        return self.held[seq]

    def cut(self, seq, length):
        del self.held[seq][length:]

    def forward(self, items):
        self.began.set()
        assert self.gate.wait(20)
        self.sizes.append(len(items))
        for seq, ids, _ in items:
            self.held[seq] += ids
        return [np.eye(1, self.row_width, 7, np.float32).repeat(n, 0) for *_, n in items]

    def close(self):
        pass


@pytest.mark.parametrize("backend", ["llama", "onnx"])
def test_it_proposes_what_the_model_proposes_here(network, backend) -> None:
    service, url = network.serve(backend=backend)
    prompt = network.tokenizer.encode_prompt("And it came to pass in those days, that")
    long = [*prompt, *prompt * 15]  # read in several chunks

    def lead(at: int) -> None:
        lm = load_lm(PACK, backend).lm
        member, here = network.meet(url), Member("here", Drafter(lm, network.tokenizer.size))
        sampling = Sampling(temperature=(0.0, 0.7, 1.5)[at], seed=at)
        ids = list(long if at else prompt)
        for step in range(12):
            never = frozenset({ids[-1]}) if step % 3 == 0 else NOBODY
            there = member.propose(ids, 4, sampling, 3, never)
            while here.behind(ids) > CHUNK:  # sums of other chunks would round differently
                here.read(ids, CHUNK)
            mine = here.propose(ids, 4, sampling, 3, never)
            assert there[0].id == mine[0].id
            assert abs(there[0].confidence - mine[0].confidence) < 1e-3
            ids = [*ids[:-3], *ids[-2:]] if step == 7 else [*ids, there[0].id]
        lm.close()

    with ThreadPoolExecutor(3) as leads:
        list(leads.map(lead, range(3)))
    facts = service.facts()
    assert facts["steps"] == 36
    assert facts["steps_are_made"] == {"llama": "in one batch", "onnx": "in turns"}[backend]


def test_steps_of_many_leads_are_made_in_one_batch(network) -> None:
    made = Gated()
    service, url = network.serve(made)
    members = [network.meet(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as leads:
        first = leads.submit(members[0].propose, [1, 2], 1, GREEDY, 1, NOBODY)
        assert made.began.wait(20)
        others = [leads.submit(m.propose, [1, 2], 1, GREEDY, 1, NOBODY) for m in members[1:]]
        until(lambda: service.facts()["waiting"] == 3)
        made.gate.set()
        assert all(job.result(20)[0].id == 7 for job in (first, *others))
    assert made.sizes == [1, 3]
    assert members[0].load == 0.0
    assert members[3].load > 0.0  # others were there


def test_what_is_not_wanted_any_more_is_freed_at_once(network) -> None:
    made = Gated()
    made.gate.set()
    service, url = network.serve(made)
    one, other = network.meet(url), network.meet(url)
    one.propose([1, 2, 3], 1, GREEDY, 1, NOBODY)
    one.propose([9, 8, 7], 1, GREEDY, 1, NOBODY)  # another text
    other.read([5, 5, 5], 3)
    assert (service.facts()["texts"], service.facts()["held"]) == (3, 3)
    one.forget([1, 2, 3, 4])
    until(lambda: service.facts()["held"] == 2)
    assert sum(map(len, made.held)) == 6
    assert one.behind([1, 2, 3]) == 3
    network.leave(one)
    until(lambda: (service.facts()["leads"], service.facts()["held"]) == (1, 1))
    # Whoever goes while its step is made, too.
    made.gate.clear()
    made.began.clear()
    with ThreadPoolExecutor(1) as lead:
        job = lead.submit(other.propose, [4, 4], 1, GREEDY, 1, NOBODY)
        assert made.began.wait(20)
        network.leave(other)
        with pytest.raises(BackendError):
            job.result(20)
    until(lambda: service.facts()["leads"] == 0)
    made.gate.set()
    until(lambda: service.facts()["held"] == 0)
    assert not any(made.held)


def test_a_full_queue_says_so(network) -> None:
    made = Gated()
    _, url = network.serve(made, max_queue=1)
    members = [network.meet(url) for _ in range(3)]
    with ThreadPoolExecutor(3) as leads:
        first = leads.submit(members[0].propose, [1, 2], 1, GREEDY, 1, NOBODY)
        assert made.began.wait(20)
        others = [leads.submit(m.propose, [1, 2], 1, GREEDY, 1, NOBODY) for m in members[1:]]
        until(lambda: any(job.done() for job in others))
        made.gate.set()
        errors = [job.exception(20) for job in (first, *others)]
    (refused,) = filter(None, errors)
    assert "too many steps wait" in str(refused)


class TestRefusals:
    def test_another_tokenizer(self, network) -> None:
        other = other_vocabulary(network.vocabulary)
        service, url = network.serve(Gated(), other)
        with pytest.raises(HandshakeError, match="another tokenizer"):
            network.meet(url)
        assert service.facts()["refused"] >= 1

    def test_the_same_drafter_twice(self, network) -> None:
        _, url = network.serve(Gated())
        lan = Lan()
        network.meet(url, lan)
        with pytest.raises(HandshakeError, match="the same drafter"):
            network.meet(url.replace("127.0.0.1", "localhost"), lan)

    def test_a_wrong_key(self, network) -> None:
        _, url = network.serve(Gated(), keys=KeyFile.of("right", "me"))
        for key in (None, "wrong"):
            with pytest.raises(HandshakeError, match="key"):
                network.meet(url, key=key)
        assert network.meet(url, key="right").there

    def test_too_long_a_text(self, network) -> None:
        made = Gated()
        made.gate.set()
        _, url = network.serve(made)
        member = network.meet(url)
        with pytest.raises(BackendError, match="does not fit"):
            member.propose([1] * 513, 1, GREEDY, 1, NOBODY)
        assert member.propose([1, 2], 1, GREEDY, 1, NOBODY)[0].id == 7


def other_vocabulary(vocabulary):
    entries = list(vocabulary.entries)
    entries[1000], entries[1001] = entries[1001], entries[1000]
    return type(vocabulary)(tuple(entries), vocabulary.specials, vocabulary.template)


def mutations(data: bytes, rng: random.Random):
    """The bytes with one flipped, cut short, doubled or made up."""
    at = rng.randrange(len(data))
    yield data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    yield data[:at]
    yield data + data
    yield rng.randbytes(rng.randrange(1, 40))


def test_mutated_steps_end_their_own_lead_alone(network) -> None:
    made = Gated()
    made.gate.set()
    service, url = network.serve(made, max_leads=64)
    honest = network.meet(url)
    rng = random.Random(5)
    greet = encode(Greet(tokenizer=network.vocabulary.fingerprint()))
    terms = Terms(prompt_len=1, sampling=Sampling(temperature=1.0, seed=3))
    step = encode(Step(number=1, stream=0, keep=0, ids=(1, 2, 3), width=2, terms=terms))

    async def wrong(messages) -> None:
        async with await connect(url) as link:
            for message in messages:
                await link.send(message)
            with contextlib.suppress(TimeoutError, LinkError):
                async with asyncio.timeout(0.5):
                    while True:
                        decode(await link.recv())  # whatever is said is a message

    async def all_of_them() -> None:
        bad = [[greet, b] for _ in range(6) for b in mutations(step, rng)]
        bad += [[b] for _ in range(3) for b in mutations(greet, rng)]
        bad += [
            [greet, encode(Step(number=1, stream=0, keep=5, ids=(1,), width=1, terms=terms))],
            [greet, encode(Step(number=1, stream=0, keep=0, ids=(1,), width=1))],
            [greet, encode(Step(number=1, stream=63, keep=0, ids=(1,), width=1, terms=terms))],
            [greet, step, greet],
            [encode(Forget(stream=1))],
        ]
        for start in range(0, len(bad), 8):
            await asyncio.gather(*map(wrong, bad[start : start + 8]))

    network.run(all_of_them())
    assert honest.propose([4, 5, 6], 1, GREEDY, 1, NOBODY)[0].id == 7
    until(lambda: service.facts()["leads"] == 1)
    assert service.failed is None


def test_a_member_that_talks_nonsense_is_passed_by(network, monkeypatch) -> None:
    """A service that answers with mutated, made-up or impossible proposals."""
    monkeypatch.setattr(remote, "BACK_OFF_MAX", 0.02)
    monkeypatch.setattr(remote, "BACK_OFF", 0.02)
    rng = random.Random(1)
    lies = [
        Proposed(number=1),
        Proposed(number=1, proposals=(Named(3, 0.5), Named(3, 0.2))),
        Proposed(number=1, proposals=(Named(4096, 0.5),)),
        Proposed(number=77, proposals=(Named(3, 0.5),)),
        Failed(number=1, code="backend", message="no"),
    ]

    async def liar(link) -> None:
        await link.recv()
        greeted = Greeted(agent="x", model="liar", member=rng.randbytes(16), n_ctx=99, streams=4)
        await link.send(encode(greeted))
        while True:
            step = decode(await link.recv())
            if isinstance(step, Step):
                heard.append(step)
                lie = lies[len(heard) % len(lies)]
                if lie.number == 1:
                    lie = msgspec.structs.replace(lie, number=step.number)
                answer = encode(lie)
                if len(heard) > 2 * len(lies):
                    answer = list(mutations(answer, rng))[len(heard) % 4]
                await link.send(answer)

    heard: list[Step] = []
    server = network.run(serve(liar))
    member = network.meet(server.url)
    lm = load_lm(PACK, "onnx").lm
    here = Member("here", Drafter(lm, network.tokenizer.size))
    group = Group(Table([here, member]), settings=GroupSettings(fixed=True, width=2))
    ids = [5, 6, 7]
    for _ in range(25):
        guess = group.draft(ids, 1, GREEDY, 2, standing=CHEAP)
        assert guess.depth >= 1
        assert all(0 <= token < 4096 for token in guess.tokens)
        seat = group.steps._seats[1]
        seat.away_until = 0.0  # asked again at once
        ids.append(guess.tokens[0])
        until(lambda: member.there)
    assert len(heard) > 8
    network.members.remove(member)
    group.close()
    network.run(server.close(0.1))


def test_it_comes_back_by_itself(network) -> None:
    service, url = network.serve(backend="llama", count=2)
    member = network.meet(url)
    lm = load_lm(PACK, "onnx").lm
    here = Member("here", Drafter(lm, network.tokenizer.size))
    group = Group(Table([here, member]), settings=GroupSettings(fixed=True))
    assert group.draft([1, 2, 3], 1, GREEDY, 3, standing=CHEAP).depth == 3
    network.stop(service)
    until(lambda: not member.there)
    assert group.steps.ready() == [0]
    assert group.draft([1, 2, 3], 1, GREEDY, 3, standing=CHEAP).depth == 3
    port = int(url.rpartition(":")[2].partition("/")[0])
    network.serve(backend="llama", count=2, port=port)
    until(lambda: group.steps.ready() == [0, 1], 40)
    assert member.behind([1, 2, 3]) == 3  # the new process knows nothing
    assert group.draft([1, 2, 3], 1, GREEDY, 3, standing=CHEAP).depth == 3
    assert member.behind([1, 2, 3]) < 3
    network.members.remove(member)
    group.close()


def test_a_group_whose_members_are_all_away_says_so_and_comes_back(network) -> None:
    service, url = network.serve(Gated())
    member = network.meet(url)
    service_made = service._turns.sequences
    service_made.gate.set()
    group = Group(Table([member]))
    network.stop(service)
    until(lambda: not member.there)
    with pytest.raises(AwayError, match="every drafter of the group failed") as away:
        group.draft([1, 2], 1, GREEDY, 1, standing=CHEAP)
    assert not away.value.busy
    assert away.value.retry_after > 0
    made = Gated()
    made.gate.set()
    network.serve(made, port=int(url.rpartition(":")[2].partition("/")[0]))
    until(lambda: member.there, 40)
    assert group.draft([1, 2], 1, GREEDY, 1, standing=CHEAP).tokens[0] == 7
    network.members.remove(member)
    group.close()


def test_messages_survive_the_wire() -> None:
    messages = [
        Refused(code="a", message="b"),
        Failed(number=3, code="busy", message="x"),
        Proposed(number=2, proposals=(Named(1, 0.25),), waited=3, worked=4, load=0.5),
        Step(number=1, stream=2, keep=3, ids=(4, 5), width=0),
        Forget(stream=3),
    ]
    for message in messages:
        assert decode(encode(message)) == message
    assert len(encode(Step(number=200, stream=0, keep=300, ids=(4000,), width=2))) < 20
    with pytest.raises(DecodeError):
        decode(encode(Proposed(number=-1)))
    for wrong in ((), (1, 1), (9,)):
        lie = Proposed(number=1, proposals=tuple(Named(i, 0.5) for i in wrong))
        with pytest.raises(DecodeError):
            proposals(lie, 2, 9, NOBODY)
    with pytest.raises(DecodeError):
        proposals(Proposed(number=1, proposals=(Named(1, 0.5),)), 2, 9, frozenset({1}))
