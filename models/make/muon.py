"""Muon for the inner matrices, AdamW for the embedding and the vectors.

Muon steps along the momentum made orthogonal by five Newton-Schulz iterations. Matrices of one
shape go through the iterations together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonal(stack: Tensor) -> Tensor:
    """Bring the singular values of each matrix in a stack near 1."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    done: Tensor = x.mT if tall else x
    return done


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal steps, and decoupled weight decay."""

    def __init__(self, params: Sequence[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
            for (rows, columns), parameters in by_shape.items():
                ahead = []
                for parameter in parameters:
                    assert parameter.grad is not None
                    state = self.state[parameter]
                    if not state:
                        state["momentum"] = torch.zeros_like(parameter)
                    momentum: Tensor = state["momentum"]
                    momentum.mul_(MOMENTUM).add_(parameter.grad)
                    ahead.append(parameter.grad.add(momentum, alpha=MOMENTUM))
                scale = group["lr"] * max(1.0, rows / columns) ** 0.5
                for parameter, move in zip(parameters, orthogonal(torch.stack(ahead)), strict=True):
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.add_(move, alpha=-scale)
        return None


@dataclass
class Optimizers:
    """The optimizers of one model, driven together. Without Muon, AdamW has every parameter."""

    muon: Muon | None
    adam: torch.optim.AdamW
    muon_rate: float
    adam_rate: float

    @classmethod
    def of(
        cls, model: torch.nn.Module, muon_rate: float, adam_rate: float, weight_decay: float
    ) -> Optimizers:
        """Share out the parameters of a model; a Muon rate of 0 leaves Muon out."""
        for_muon, for_adam, vectors = [], [], []
        for name, parameter in model.named_parameters():
            outer = "embed" in name or "lm_head" in name
            if parameter.dim() < 2:
                vectors.append(parameter)
            elif muon_rate and not outer:
                for_muon.append(parameter)
            else:
                for_adam.append(parameter)
        groups: list[dict[str, Any]] = [
            {"params": for_adam, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        adam = torch.optim.AdamW(groups, lr=adam_rate, betas=(0.9, 0.95), fused=True)
        muon = Muon(for_muon, muon_rate, weight_decay) if for_muon else None
        return cls(muon, adam, muon_rate, adam_rate)

    def step(self, scale: float) -> None:
        """Take one step at a share of the learning rates, and clear the gradients."""
        for optimizer, rate in ((self.muon, self.muon_rate), (self.adam, self.adam_rate)):
            if optimizer is None:
                continue
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Give the state of both."""
        return {
            "muon": self.muon.state_dict() if self.muon else None,
            "adam": self.adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of both."""
        if self.muon:
            self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
