"""Distillation: teach a drafter the target's distributions, on the target's own text.

The acceptance rate of a drafter is sum(min(p, q)), one less the total variation distance. The
forward Kullback-Leibler divergence brings q near p everywhere, the total variation pulls at
acceptance itself; their mix starts with the first and ends with the second. Text is what the target
writes from prompts, or is given, or (``on_policy``) what the drafter writes while it learns.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.protocol.errors import BackendError, SettingError
from outrider.quantize.checkpoint import read_checkpoint
from outrider.quantize.folder import refuse_a_model, saving, write_checkpoint
from outrider.quantize.torch_model import device_of, load_model, torch
from outrider.runtime.text.tokenizer import load_tokenizer

LOSSES = ("forward", "reverse", "tv", "mixed")
STATE_FILE = "distil-state.pt"
MOST_MINUTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How to distil. ``minutes`` bounds the time, the last part of which cools the rate down.

    ``steps`` (0: as many as fit the time) bounds the steps, and makes a run repeatable.
    """

    loss: str = "mixed"
    minutes: float = 6.0
    steps: int = 0
    rate: float = 2e-3
    rows: int = 8
    length: int = 256
    on_policy: float = 0.0  # share of batches that the drafter writes itself
    samples: float = 0.3  # share of the time in which the target writes
    sample_rows: int = 48
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    warmup: int = 20
    weight_decay: float = 0.01
    clip: float = 1.0
    save_every_s: float = 30.0

    def check(self) -> None:
        """Raises SettingError where a value makes no sense."""
        if self.loss not in LOSSES:
            raise SettingError(f"loss {self.loss!r} is not one of {', '.join(LOSSES)}")
        if not 0.0 < self.minutes < MOST_MINUTES:
            raise SettingError(
                f"minutes is {self.minutes}; it must be more than 0 and under {MOST_MINUTES:,}"
            )
        if not 0 <= self.seed < 1 << 63:
            raise SettingError(f"seed is {self.seed}; it must be from 0 to under 2^63")
        for name, share in (("on_policy", self.on_policy), ("samples", self.samples)):
            if not 0.0 <= share < 1.0:
                raise SettingError(f"{name} is {share}; it must be from 0 to under 1")


@dataclass(frozen=True, slots=True)
class Distilled:
    """Overlap is sum(min(p, q)) on held-out text of the target's, before and after."""

    start: float
    end: float
    steps: int
    seconds: float
    tokens: int
    resumed: bool


Watch = Callable[[float, float, int, float], None]
"""Called with (seconds done, seconds in all, steps, recent overlap)."""


def distil(
    student: Path,
    teacher: Path,
    out: Path,
    settings: Settings,
    *,
    blocks: Sequence[Sequence[int]] = (),
    prompts: Sequence[Sequence[int]] = (),
    watch: Watch = lambda *_: None,
) -> Distilled:
    """Distil ``teacher`` into ``student`` and write the checkpoint folder ``out``.

    ``blocks``: ids of given texts. ``prompts``: what the target goes on from; without any it begins
    with ids drawn at random. Started again with the same ``out`` it goes on where it stopped.

    Raises:
        SettingError: settings out of range, or ``out`` holds a model that is none of this run's.
        BackendError: the models have other vocabularies, do not load, or ``out`` is not writable.
    """
    settings.check()
    device = device_of(settings.device)
    if not (out / STATE_FILE).exists():
        refuse_a_model(out)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    big, small = (load_model(path, device=device) for path in (teacher, student))
    shared = _shared(big, small, teacher)
    openings, given = [list(prompt) for prompt in prompts], [list(block) for block in blocks]
    for ids in (*openings, *given):
        if max(ids, default=0) >= shared:
            raise BackendError(
                f"the tokenizer has the id {max(ids)} and the models {shared} ids: "
                "they do not belong together"
            )
    out.mkdir(parents=True, exist_ok=True)
    run = _Run(
        big,
        small,
        settings,
        out,
        blocks=given,
        identity=_identity(student, teacher, openings, given),
    )
    run.resume()
    try:
        run.sample(openings, watch)
        run.train(watch)
    except KeyboardInterrupt:
        run.save()
        raise
    own = (student / "tokenizer.json").is_file()
    write_checkpoint(out, small.save_pretrained, tokenizer=student if own else teacher)
    outcome = run.outcome()
    (out / STATE_FILE).unlink(missing_ok=True)
    return outcome


def _shared(big: Any, small: Any, teacher: Path) -> int:
    """How many ids count: siblings may differ in how far their rows are padded (Qwen2.5 does)."""
    sizes = big.config.vocab_size, small.config.vocab_size
    if sizes[0] != sizes[1] and load_tokenizer(teacher).size > min(sizes):
        raise BackendError(f"the target has {sizes[0]} ids and the drafter {sizes[1]}")
    return int(min(sizes))


def _identity(student: Path, teacher: Path, *texts: list[list[int]]) -> str:
    """A hash of what is distilled into what, on which texts: settings are kept beside it."""
    digest = hashlib.sha256(repr(texts).encode())
    for path in (student, teacher):
        digest.update(read_checkpoint(path).fingerprint().encode())
    return digest.hexdigest()


class _Run:
    """One distillation: the models, the text and what has been done."""

    def __init__(
        self,
        big: Any,
        small: Any,
        settings: Settings,
        out: Path,
        *,
        blocks: list[list[int]],
        identity: str,
    ) -> None:
        self.big, self.small, self.settings, self.out = big, small, settings, out
        self.shared = min(big.config.vocab_size, small.config.vocab_size)
        self.identity = identity
        self.given = blocks
        self.written: list[list[int]] = []
        self.held: list[list[int]] = []
        self.optimizer = torch.optim.AdamW(
            small.parameters(), lr=settings.rate, weight_decay=settings.weight_decay
        )
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        self.start = 0.0
        self.resumed = False
        self.rng = np.random.default_rng(settings.seed)

    def resume(self) -> None:
        """Go on with a run of the same settings that was interrupted."""
        path = self.out / STATE_FILE
        if not path.exists():
            return
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises whatever its unpickler does
            raise BackendError(f"cannot read {path}: {error}; remove it to begin anew") from error
        if state["settings"] != asdict(self.settings):
            raise SettingError(f"{path} is of a run with other settings; remove it to begin anew")
        if state.get("identity") != self.identity:
            raise SettingError(
                f"{path} is of a run with another drafter, target or text; choose another folder, "
                "or remove it to begin anew"
            )
        self.small.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds, self.tokens = state["step"], state["seconds"], state["tokens"]
        self.written, self.held, self.start = state["written"], state["held"], state["start"]
        self.rng.bit_generator.state = state["numpy"]
        torch.set_rng_state(state["torch"])
        self.resumed = True

    def save(self) -> None:
        """Write all that is needed to go on, in one step."""
        state = {
            "identity": self.identity,
            "numpy": self.rng.bit_generator.state,
            "torch": torch.get_rng_state(),
            "settings": asdict(self.settings),
            "model": self.small.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "written": self.written,
            "held": self.held,
            "start": self.start,
        }
        with saving(self.out / STATE_FILE, 0) as part:
            try:
                torch.save(state, part)
            except RuntimeError as error:  # torch's own writer does not say what the system said
                raise BackendError(f"cannot write {part}: {error}") from error

    def sample(self, prompts: list[list[int]], watch: Watch) -> None:
        """Let the target write for its share of the time; a part of it is kept to measure with.

        Training has the rest of the time for itself, however long the last of the writing took.
        """
        total = self.settings.minutes * 60
        share = self.settings.samples * total
        saved = time.monotonic()
        while not self.held or self.seconds < share:
            began = time.monotonic()
            rows = _write(self.big, self._openings(prompts), self.settings.length, self.shared)
            if self.held:
                self.written += rows
            else:
                self.start = self.overlap(rows[: max(8, len(rows) // 4)])
                self.held = rows[: max(8, len(rows) // 4)]
                self.written = rows[len(self.held) :]
            self.seconds = min(share, self.seconds + time.monotonic() - began)
            watch(self.seconds, total, 0, self.start)
            if self.seconds >= share or time.monotonic() - saved > self.settings.save_every_s:
                self.save()
                saved = time.monotonic()

    def _openings(self, prompts: list[list[int]]) -> list[list[int]]:
        """As many openings as rows are written at once, all of one length."""
        count, most = self.settings.sample_rows, self.settings.length // 4
        if not prompts:
            return [[int(i)] for i in self.rng.integers(0, self.shared, count)]
        chosen = [prompts[int(i)] for i in self.rng.integers(0, len(prompts), count)]
        shortest = min(most, *(len(prompt) for prompt in chosen))
        return [prompt[:shortest] for prompt in chosen]

    def train(self, watch: Watch) -> None:
        """Steps until the time is up."""
        total = self.settings.minutes * 60
        saved = time.monotonic()
        recent = self.start
        while (done := self._done(total)) < 1.0:
            began = time.monotonic()
            recent = 0.95 * recent + 0.05 * self._learn(done)
            self.seconds += time.monotonic() - began
            watch(min(self.seconds, total), total, self.step, recent)
            if time.monotonic() - saved > self.settings.save_every_s:
                self.save()
                saved = time.monotonic()

    def _done(self, total: float) -> float:
        """The share of the run that lies behind."""
        if self.settings.steps:
            return self.step / self.settings.steps
        return self.seconds / total

    def _learn(self, done: float) -> float:
        """One step; returns the overlap of its batch."""
        settings = self.settings
        ids = torch.tensor(self._batch(), device=settings.device)
        with torch.no_grad():
            wanted = self._logits(self.big, ids)
        logits = self._logits(self.small, ids)
        loss, overlap = divergence(logits, wanted, settings.loss, done)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.small.parameters(), settings.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.rate * _scale(self.step, done, settings)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += ids.numel()
        return overlap

    def _batch(self) -> list[list[int]]:
        settings = self.settings
        if self.rng.random() < settings.on_policy:
            openings = [row[: settings.length // 8] for row in self._rows(settings.rows)]
            return _write(self.small, openings, settings.length, self.shared)
        return self._rows(settings.rows)

    def _rows(self, count: int) -> list[list[int]]:
        """Rows of the target's text and of the given one, each as likely as there is of it."""
        whole = len(self.written) + len(self.given)
        picks = self.rng.integers(0, whole, count)
        rows = [
            self.written[i] if i < len(self.written) else self.given[i - len(self.written)]
            for i in map(int, picks)
        ]
        shortest = min(self.settings.length, *(len(row) for row in rows))
        return [row[:shortest] for row in rows]

    def _logits(self, model: Any, ids: Any) -> Any:
        """Rows ``[rows, length, shared ids]``, without what pads them."""
        return model(input_ids=ids, use_cache=False).logits[..., : self.shared]

    def overlap(self, held: list[list[int]]) -> float:
        """sum(min(p, q)) of the drafter on the text that was kept to measure with."""
        found, count = 0.0, 0
        with torch.inference_mode():
            for begin in range(0, len(held), 4):
                ids = torch.tensor(held[begin : begin + 4], device=self.settings.device)
                p = self._logits(self.big, ids).float().softmax(-1)
                q = self._logits(self.small, ids).float().softmax(-1)
                found += float(torch.minimum(p, q).sum())
                count += ids.numel()
        return found / count

    def outcome(self) -> Distilled:
        """What came of it."""
        return Distilled(
            self.start,
            self.overlap(self.held),
            self.step,
            self.seconds,
            self.tokens,
            self.resumed,
        )


def divergence(logits: Any, wanted: Any, kind: str, done: float = 0.0) -> tuple[Any, float]:
    """(the loss of ``logits`` against the target's, the mean of sum(min(p, q))).

    ``done``: the share of the run that lies behind; ``mixed`` shifts from forward KL to TV by it.
    """
    log_q, log_p = logits.float().log_softmax(-1), wanted.float().log_softmax(-1)
    p, q = log_p.exp(), log_q.exp()
    tv = 0.5 * (p - q).abs().sum(-1).mean()
    if kind == "tv":
        loss = tv
    elif kind == "reverse":
        loss = (q * (log_q - log_p)).sum(-1).mean()
    else:
        loss = (p * (log_p - log_q)).sum(-1).mean()
        if kind == "mixed":
            share = 0.2 + 0.6 * done
            loss = (1.0 - share) * loss + share * 3.0 * tv
    return loss, 1.0 - float(tv.detach())


def _scale(step: int, done: float, settings: Settings) -> float:
    """Warm up, stay, and from half of the time on fall to a fiftieth."""
    warm = min(1.0, (step + 1) / settings.warmup)
    return warm * min(1.0, max(0.02, 2.0 * (1.0 - done)))


def write_texts(
    model: Path, openings: list[list[int]], length: int, *, seed: int
) -> list[list[int]]:
    """Texts of ``length`` ids that a checkpoint writes at temperature 1; openings of one length."""
    torch.manual_seed(seed)
    loaded = load_model(model)
    return _write(loaded, openings, length, loaded.config.vocab_size)


def _write(model: Any, openings: list[list[int]], length: int, below: int) -> list[list[int]]:
    """Texts of ``length`` ids less than ``below``, sampled at temperature 1 without a cut."""
    ids = torch.tensor(openings, device=model.device)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            suppress_tokens=list(range(below, model.config.vocab_size)) or None,
            min_new_tokens=length - ids.shape[1],
            max_new_tokens=length - ids.shape[1],
            pad_token_id=0,
        )
    return [list(map(int, row)) for row in out.tolist()]
