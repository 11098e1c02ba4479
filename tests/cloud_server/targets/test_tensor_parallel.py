"""One model over two processes on a CPU (gloo): the same text, rows batched and rolled back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.factory import load_target  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402
from outrider.protocol.errors import BackendError, SettingError  # noqa: E402

PROMPT = [5, 9, 30, 11, 7]


def test_two_ranks(toy):
    alone = TransformersTarget.load(str(toy), slots=2, threads=1)
    target = load_target(str(toy), slots=2, threads=1, tensor_parallel=2)
    try:
        assert target._inner._memory.layers[0].keys.shape[1] == 1, "a head for each rank"
        ids, cut = list(PROMPT), 0
        for step in range(12):
            wrong = [step % 60, 3, 8][: step % 4]  # drafts that are rolled back
            rows = [
                Row(0, cut, [*ids, *wrong], len(wrong) + 1, Sampling(), 5),
                Row(1, 0, ids[::-1], 2, Sampling(temperature=0.8, seed=step), 1),
            ]
            ours, theirs = target.forward(rows), alone.forward(rows)
            assert [d.ids for d in ours] == [d.ids for d in theirs]
            cut = len(ids)
            ids.append(ours[0].ids[0])
        with pytest.raises(BackendError, match="names no slot"):
            target.forward([Row(9, 0, PROMPT, 1, Sampling(), 1)])
        row = Row(0, 0, PROMPT, 1, Sampling(), 1)
        assert target.score(row, [4])[0] == pytest.approx(alone.score(row, [4])[0], abs=1e-3)
        process, _ = target._others[0]
        process.terminate()
        process.join()
        with pytest.raises(BackendError, match="rank 1 of the target has died"):
            target.forward([row])
    finally:
        target.close()
        target.close()
    assert not torch.distributed.is_initialized()


def test_what_cannot_be_shared(toy):
    with pytest.raises(BackendError, match="num_attention_heads are 4, which 3 ranks cannot"):
        load_target(str(toy), tensor_parallel=3)
    with pytest.raises(SettingError, match="tensor_parallel is 0"):
        load_target(str(toy), tensor_parallel=0)
    with pytest.raises(SettingError, match="for the transformers backend"):
        load_target("x.gguf", tensor_parallel=2)
