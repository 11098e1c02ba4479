"""The padded layout and the recording of passes, on a CPU: the recorder just runs again.

What CUDA itself does with a recording is not tested here.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from outrider.cloud_server.targets import graphs  # noqa: E402
from outrider.cloud_server.targets.base import Row  # noqa: E402
from outrider.cloud_server.targets.transformers import TransformersTarget  # noqa: E402
from outrider.protocol.decoding.sampling import Sampling  # noqa: E402


class Again:
    """Counts what is recorded and replayed; a replay may use only memory that it knew before."""

    def __init__(self):
        self.recorded, self.replayed = 0, 0

    def __call__(self, run):
        self.recorded += 1

        def replay():
            self.replayed += 1
            return run()

        return replay


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Gemma2"])
def test_padded_and_replayed_is_the_same(toy_factory, kind):
    folder = toy_factory(kind, head_dim=8, sliding_window=8)
    ragged = TransformersTarget.load(str(folder), slots=6, threads=1)
    dense = TransformersTarget.load(str(folder), slots=6, threads=1)
    recorder = Again()
    dense.use_graphs(recorder)
    random = torch.Generator().manual_seed(1)
    texts = [torch.randint(60, (110,), generator=random).tolist() for _ in range(6)]
    cuts = [0, 5, 9, 30, 2, 40]
    prefill = [Row(s, 0, texts[s][:cut], 0, Sampling(), 1) for s, cut in enumerate(cuts) if cut]
    for target in (ragged, dense):
        target.forward(prefill)
    for turn in range(8):
        rows = []
        for s in range(6 if turn != 4 else 3):
            count = 1 + (turn + s) % 4
            if turn == 5 and s == 3:
                count = 25  # a prompt among drafts
            ids = texts[s][: cuts[s] + count]
            rows.append(Row(s, cuts[s], ids, min(count, 3), Sampling(), 1))
            cuts[s] += max(0, count - 1)
        for a, b in zip(ragged._logits(rows), dense._logits(rows), strict=True):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=1e-4)
    assert recorder.recorded
    assert recorder.replayed >= 3
    assert ragged.lengths() == dense.lengths()


def test_the_oldest_recording_goes(monkeypatch, toy):
    monkeypatch.setattr(graphs, "MOST", 1)
    target = TransformersTarget.load(str(toy), slots=4, threads=1)
    recorder = Again()
    target.use_graphs(recorder)
    for count in (1, 2, 1, 2, 1, 2, 1, 2):
        rows = [Row(s, 0, [7, 8], 1, Sampling(), 1) for s in range(count)]
        assert len({d.ids for d in target.forward(rows)}) == 1
    assert recorder.recorded == 4, "two, and each once more after it had to go"


def test_where_recording_fails_it_is_said_once(toy, caplog):
    def fail(_run):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    target = TransformersTarget.load(str(toy), slots=2, threads=1)
    target.use_graphs(fail)
    row = Row(0, 0, [7, 8], 1, Sampling(), 1)
    first = target.forward([row])
    for _ in range(5):
        assert target.forward([row]) == first
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("outrider")]
    assert said.endswith("not permitted when stream is capturing")
