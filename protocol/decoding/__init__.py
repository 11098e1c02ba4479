"""Which token comes next: settings, processors, noise and rules. Pure numpy; both ends run it.

- ``sampling``: the settings of an answer.
- ``processors``: from a row of logits to the tokens that may be chosen.
- ``noise``: the random numbers that both ends share; a wire contract.
- ``rules``: the choice of a target, the proposal of a drafter.
- ``sparse``: distributions cut to what can be sent; the draw from them.
- ``ratio``: drafts judged by their distributions.
- ``combine``: one distribution of two models. ``alternate``: n models that take turns.
"""
