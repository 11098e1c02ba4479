"""Whether a text can be partly of the models that sit at this edge."""

from __future__ import annotations

from outrider.protocol.decoding.sampling import Sampling
from outrider.protocol.errors import SettingError
from outrider.runtime.lm.drafter import Collaborator


def check_models(sampling: Sampling, drafter: object | None) -> None:
    """Refuse a combination that does not fit the models here.

    Raises:
        SettingError: there is none, they have no one distribution, or weights for more or fewer.
    """
    together = sampling.collaborate
    if together is None:
        return
    if drafter is None:
        raise SettingError("collaborative decoding needs a model at the edge: there is none")
    if not isinstance(drafter, Collaborator):
        raise SettingError(
            "a text cannot be partly of a group of drafters, whose members take turns as they "
            "please: name one model, or a weight for each of several"
        )
    if drafter.models != together.models:
        raise SettingError(
            f"models at this edge: {drafter.models}; weights for them in the combination: "
            f"{together.models}. Each needs one, in their order, as in ensemble=0.3,0.2"
        )
