"""Soft actor-critic for many agents, hybrid: a categorical server and squashed-Gaussian shares.

One actor is shared by all devices. It looks at every pair of a device and a server with the same
weights, beside the means over the device's other servers and the server's other devices, so that
what is learned in one cell is used in any other. Twin central critics see who is where.
``associate=False`` is the paper's TMA-MASAC: the shares are learned, the association is given by
the matching. The paper gives no network sizes, rates or horizons: these are ours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from outrider.cloud_server.placement import association
from outrider.cloud_server.placement.actor import FEATURES, LEAST, observe, weighted
from outrider.cloud_server.placement.problem import Placement, Problem
from outrider.protocol.errors import BackendError, SettingError
from outrider.simulator.cell.environment import CellEnv
from outrider.simulator.cell.model import Settings

_HALF_LOG_2PI = 0.9189385

Report = Callable[[int, int, float], None]
"""Called with (steps, of how many, the mean reward of the last hundred)."""


@dataclass(frozen=True, slots=True)
class Learning:
    """``steps`` of the environment; all else as usual in soft actor-critic."""

    steps: int = 3000
    width: int = 64
    rate: float = 1e-3
    batch: int = 32
    memory: int = 4000
    warmup: int = 200
    discount: float = 0.5  # what is done in a slot hardly changes the next one
    follow: float = 0.01
    slots: int = 50
    seed: int = 0
    associate: bool = True
    save_every: int = 500


class Actor(nn.Module):
    """Observations [.., M, E, F] -> logits of servers [.., M, E], and the mean and log-deviation of
    the two weights at each [.., M, E, 2]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pair = nn.Linear(FEATURES, width)
        self.body = nn.Linear(width, width)
        self.others, self.crowd = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = nn.Linear(width, 5)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, means, log-deviations)."""
        pair = torch.relu(self.pair(seen))
        others = self.others(pair.mean(-2, keepdim=True))
        crowd = self.crowd(pair.mean(-3, keepdim=True))
        out = self.head(torch.relu(self.body(pair) + others + crowd))
        return out[..., 0], out[..., 1:3], out[..., 3:5].clamp(-5.0, 1.0)


class Critic(nn.Module):
    """All observations and actions -> the value of the whole."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(FEATURES + 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.crowd = nn.Sequential(nn.Linear(width + 1, width), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, seen: Tensor, server: Tensor, weights: Tensor) -> Tensor:
        """[B, M, E, F], [B, M, E] (one-hot or soft), [B, M, 2] -> [B]."""
        there = torch.einsum("bme,bmef->bmf", server, seen)
        each = self.each(torch.cat([there, weights], dim=-1))
        part = server.shape[2] / server.shape[1]  # servers a device
        by_server = torch.einsum("bme,bmw->bew", server, each) * part
        load = server.sum(1).unsqueeze(-1) * part
        crowds = self.crowd(torch.cat([by_server, load], dim=-1)).mean(1)
        value: Tensor = self.whole(torch.cat([crowds, each.mean(1)], dim=-1)).squeeze(-1)
        return value


def _at(server: Tensor, values: Tensor) -> Tensor:
    """[.., M, E] one-hot, [.., M, E, 2] -> what belongs to the chosen servers [.., M, 2]."""
    return (server.unsqueeze(-1) * values).sum(-2)


class Masac:
    """The learner; :meth:`train` goes on from a checkpoint if one is there."""

    def __init__(self, settings: Settings, learning: Learning) -> None:
        settings.check()
        torch.manual_seed(learning.seed)
        self.settings, self.learning = settings, learning
        self.actor = Actor(learning.width)
        self.critics = [Critic(learning.width) for _ in range(2)]
        self.targets = copy.deepcopy(self.critics)
        self.heat = torch.tensor([-2.0, -2.0], requires_grad=True)  # log: of servers, of shares
        rate = learning.rate
        self.actor_steps = torch.optim.Adam(self.actor.parameters(), rate)
        both = [p for critic in self.critics for p in critic.parameters()]
        self.critic_steps = torch.optim.Adam(both, rate)
        self.heat_steps = torch.optim.Adam([self.heat], rate)
        self.memory: list[tuple[Any, ...]] = []
        self.step = 0
        self.rewards: list[float] = []
        self.rng = np.random.default_rng(learning.seed)

    def train(self, report: Report = lambda *_: None, checkpoint: Path | None = None) -> None:
        """Learn; saved every ``save_every`` steps where a checkpoint is given."""
        if checkpoint is not None and checkpoint.exists():
            self.load(checkpoint)
        env = CellEnv(self.settings, slots=self.learning.slots)
        env.reset(seed=self.learning.seed * 1000 + self.step)
        while self.step < self.learning.steps:
            self._experience(env)
            if len(self.memory) >= self.learning.batch and self.step > self.learning.warmup:
                self._update()
            self.step += 1
            if self.step % 100 == 0:
                report(self.step, self.learning.steps, float(np.mean(self.rewards[-100:])))
            if checkpoint is not None and self.step % self.learning.save_every == 0:
                self.save(checkpoint)

    def place(self, problem: Problem) -> Placement:
        """The placement that the actor thinks best, without chance."""
        seen = torch.from_numpy(observe(problem))
        with torch.no_grad():
            logits, mean, _ = self.actor(seen)
        server = logits.argmax(-1).numpy()
        if not self.learning.associate:
            server = association.tma(problem, self.rng)
        weights = _squash(mean).double().numpy()[np.arange(len(server)), server]
        return weighted(problem, server, weights)

    def _experience(self, env: CellEnv) -> None:
        if env.slot >= env.slots:
            env.reset(seed=self.learning.seed * 1000 + self.step)
        problem = env.problem
        seen = observe(problem)
        with torch.no_grad():
            logits, mean, deviation = self.actor(torch.from_numpy(seen))
            server = torch.multinomial(logits.softmax(-1), 1).squeeze(-1).numpy()
            drawn = _squash(mean + deviation.exp() * torch.randn_like(mean)).numpy()
        if self.step < self.learning.warmup:
            server = self.rng.integers(0, self.settings.servers, len(seen))
            drawn = self.rng.uniform(LEAST, 1.0, drawn.shape).astype(np.float32)
        if not self.learning.associate:
            server = association.tma(problem, self.rng)
        weights = drawn[np.arange(len(seen)), server]
        reward = max(-3.0, env.advance(weighted(problem, server, weights.astype(np.float64))))
        self.rewards.append(reward)
        after = env.problem
        then = association.tma(after, self.rng) if not self.learning.associate else server
        self.memory.append((seen, server, weights, reward, observe(after), then))
        del self.memory[: -self.learning.memory]

    def _update(self) -> None:
        picks = self.rng.integers(0, len(self.memory), self.learning.batch)
        rows = [self.memory[i] for i in picks]
        seen, server, weights, reward, after, then = (
            torch.from_numpy(np.stack([np.asarray(row[k]) for row in rows])) for k in range(6)
        )
        one_hot, matched = (
            nn.functional.one_hot(each.long(), self.settings.servers).float()
            for each in (server, then)
        )
        own = self.learning.associate
        heat = self.heat.exp().detach()
        with torch.no_grad():
            soft, share, entropy = self._sampled(after, None if own else matched)
            ahead = torch.minimum(*(critic(after, soft, share) for critic in self.targets))
            ahead = ahead + (heat * entropy).sum(-1)
            wanted = reward.float() + self.learning.discount * ahead
        found = [critic(seen, one_hot, weights) for critic in self.critics]
        loss = sum(((value - wanted) ** 2).mean() for value in found)
        _stepped(self.critic_steps, loss)
        soft, share, entropy = self._sampled(seen, None if own else one_hot)
        value = torch.minimum(*(critic(seen, soft, share) for critic in self.critics))
        _stepped(self.actor_steps, -(value + (heat * entropy).sum(-1)).mean())
        aim = torch.tensor([0.3, -2.0])  # entropy that is kept, a device
        _stepped(self.heat_steps, (self.heat * (entropy.detach() - aim)).sum(-1).mean())
        self._follow()

    def _sampled(self, seen: Tensor, server: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Actions that gradients pass through, and their entropies, mean over devices [B, 2].

        ``server``: one-hot, where it is not the actor that chooses.
        """
        logits, mean, deviation = self.actor(seen)
        soft = server
        if soft is None:
            soft = nn.functional.gumbel_softmax(logits, tau=0.7, hard=True)
        mean, deviation = _at(soft, mean), _at(soft, deviation)
        chances = logits.softmax(-1)
        chosen = -(chances * logits.log_softmax(-1)).sum(-1)
        raw = mean + deviation.exp() * torch.randn_like(mean)
        squashed = torch.tanh(raw)
        log_density = -0.5 * ((raw - mean) / deviation.exp()) ** 2 - deviation - _HALF_LOG_2PI
        log_density = log_density - torch.log(1.0 - squashed**2 + 1e-6)
        entropy = torch.stack([chosen.mean(1), -log_density.sum(-1).mean(1)], dim=-1)
        return soft, _squash(raw), entropy

    def _follow(self) -> None:
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
                    slow.lerp_(fast, self.learning.follow)

    def save(self, path: Path) -> None:
        """All that is needed to go on.

        Raises:
            BackendError: it cannot be written.
        """
        state = {
            "settings": asdict(self.settings),
            "learning": asdict(self.learning) | {"steps": 0},
            "actor": self.actor.state_dict(),
            "critics": [critic.state_dict() for critic in self.critics],
            "targets": [critic.state_dict() for critic in self.targets],
            "optimizers": [o.state_dict() for o in self._optimizers()],
            "heat": self.heat.detach(),
            "step": self.step,
            "rewards": self.rewards[-1000:],
        }
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(state, part)
            part.replace(path)
        except (OSError, RuntimeError) as error:  # torch says RuntimeError when the disk is full
            raise BackendError(f"cannot write {path}: {error}") from error

    def load(self, path: Path) -> None:
        """Go on where :meth:`save` was called; what was experienced is gathered anew.

        Raises:
            BackendError: the file is broken.
            SettingError: it is of other settings.
        """
        try:
            state = torch.load(path, weights_only=True)
            same = state["settings"] == asdict(self.settings)
            same &= state["learning"] == asdict(self.learning) | {"steps": 0}
        except Exception as error:  # torch raises whatever its unpickler does
            raise BackendError(f"{path} is no policy that is being learned: {error}") from error
        if not same:
            raise SettingError(
                f"{path} was learned with other settings; remove it or choose another folder"
            )
        self.actor.load_state_dict(state["actor"])
        for name in ("critics", "targets"):
            for module, found in zip(getattr(self, name), state[name], strict=True):
                module.load_state_dict(found)
        for optimizer, found in zip(self._optimizers(), state["optimizers"], strict=True):
            optimizer.load_state_dict(found)
        self.heat.data.copy_(state["heat"])
        self.step, self.rewards = state["step"], list(state["rewards"])

    def _optimizers(self) -> list[Any]:
        return [self.actor_steps, self.critic_steps, self.heat_steps]

    def export(self, path: Path) -> None:
        """The actor as ONNX: ``seen`` [M, E, F] -> ``logits`` [M, E], ``weights`` [M, E, 2]."""
        devices, servers = (torch.export.Dim(name, min=1) for name in ("devices", "servers"))
        program = torch.onnx.export(
            _Deciding(self.actor).eval(),
            (torch.zeros(3, 2, FEATURES),),
            dynamo=True,
            verbose=False,  # it would speak on standard output, where results go
            input_names=["seen"],
            output_names=["logits", "weights"],
            dynamic_shapes=({0: devices, 1: servers},),
        )
        assert program is not None
        try:
            program.save(str(path), external_data=False)
        except OSError as error:
            raise BackendError(f"cannot write {path}: {error}") from error


class _Deciding(nn.Module):
    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        logits, mean, _ = self.actor(seen)
        return logits, _squash(mean)


def _squash(raw: Tensor) -> Tensor:
    """To a weight between LEAST and 1."""
    return LEAST + (1.0 - LEAST) * (torch.tanh(raw) + 1.0) / 2.0


def _stepped(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
