"""Groups over real sockets, on both targets: trees are judged, and the text is the target's."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from time import sleep

import pytest

from outrider.edge_client.group.group import Group, GroupSettings
from outrider.edge_client.group.members import Member, Table
from outrider.edge_client.policy import Fixed, Plan, Steady
from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import BackendError
from outrider.runtime.lm.drafter import Drafter, Guess, Standing
from outrider.runtime.lm.factory import load_lm

MODELS = Path(str(files("outrider.models")))


class EagerGroup(Group):
    """Trees at any price, so that they are judged on a machine where they would not pay."""

    def draft(self, *arguments, standing=None, **settings) -> Guess:
        standing = replace(standing or Standing(), price=0.0, load=0.0)
        return super().draft(*arguments, standing=standing, **settings)


class FlakyDrafter(Drafter):
    """Dies whenever it is to read, and is asked again."""

    def prefill(self, ids, count):
        raise BackendError("it died")


class SlowMember(Member):
    """Takes longer for a step than the cloud takes for a token."""

    def propose(self, *arguments):
        sleep(0.02)
        return super().propose(*arguments)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("members", [1, 2, 4])
def test_groups_on_real_sockets(served, temperature, members):
    sampling = Sampling(temperature=temperature, seed=2)  # no near-tie in its texts
    expected = served.plain(sampling)
    size = served.tokenizer.size
    real = Drafter(load_lm(MODELS / "drafter", "onnx").lm, size, served.tokenizer.eos)
    random = served.drafter("random", expected)
    flaky = FlakyDrafter(served.drafter("wrong", expected).lm, size)
    wrong = served.drafter("wrong once", expected)
    chosen = [real, wrong, random, flaky][:members]
    # However slow its first steps are, the cloud waits for those who say that they draft.
    seats = [SlowMember(f"m{i}", drafter) for i, drafter in enumerate(chosen)]
    group = EagerGroup(Table(seats), served.tokenizer.eos, GroupSettings(fixed=True, width=3))
    judged = served.verifier.engine.stats.num_trees
    try:
        for policy in (Fixed(5), Steady(Plan(2, 8))):
            answer = served.answer(group, policy, sampling, objective="cost")
            assert list(answer.ids) == expected
            assert answer.drafted > 0
        assert served.verifier.engine.stats.num_trees > judged
    finally:
        group.close()
