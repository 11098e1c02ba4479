"""How long a step of the target takes, fitted while it runs: rows, their longest, tokens.

    seconds = fixed + row * rows + padded * rows * longest + each * tokens

``fixed`` is what reading the weights costs, ``row`` what a row costs whatever is in it, ``padded``
what a cached id of a row costs where every row is as long as the longest, ``each`` what a token
costs. CoSine (arXiv 2503.10325) profiles its cluster over the same three figures.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FORGETTING = 0.97
"""Weight of the past at each new step: the last 30 or so count."""

LEAST_WEIGHT = 0.5
"""Weight that steps of one kind keep, however long ago they were."""

KIND_GAIN = 1 / 16

LARGEST_TOLD = 6
"""Steps of less than 2 to this power tokens are told to edges: no draft is longer."""

RIDGE = 1e-4
"""Pull of the slopes towards 0, against features that never varied apart from each other."""

LONG = 1000.0
"""Ids that make one unit of the padded feature, so that all features are of like size."""

Floats = npt.NDArray[np.float64]


class StepTime:
    """Least squares over steps of all kinds, none of the slopes negative.

    Old steps lose weight, but of each kind (to a factor of two in every feature) something is
    remembered: a cloud that only sees long drafts would forget otherwise what it could do without
    them. Of a kind the means are kept, a row of ``_means`` each: three features and the seconds.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._means: Floats = np.zeros((0, 4))
        self._weights: Floats = np.zeros(0)
        self.fixed, self.row, self.padded, self.each = 0.03, 0.0, 0.0, 0.0
        self.known = False

    def observe(self, rows: int, longest: int, tokens: int, seconds: float) -> None:
        """A step over ``tokens`` of ``rows`` rows, the longest with ``longest`` ids, took so."""
        seen = np.array((rows, rows * longest / LONG, tokens, seconds), np.float64)
        key = (rows.bit_length(), longest.bit_length(), tokens.bit_length())
        at = self._kinds.setdefault(key, len(self._kinds))
        self._weights = np.maximum(LEAST_WEIGHT, FORGETTING * self._weights)
        if at == len(self._means):
            self._means = np.vstack((self._means, seen))
            self._weights = np.append(self._weights, 0.0)
        self._weights[at] += 1.0
        gain = max(KIND_GAIN, 1 / self._weights[at])
        self._means[at] += gain * (seen - self._means[at])
        self._fit()
        self.known = True

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Tokens and seconds of the sizes seen so far, at most that of a long draft."""
        sizes: dict[int, list[int]] = {}
        for (_, _, bits), at in self._kinds.items():
            if bits <= LARGEST_TOLD:
                sizes.setdefault(bits, []).append(at)
        means = [
            self._weights[kinds] @ self._means[kinds] / self._weights[kinds].sum()
            for _, kinds in sorted(sizes.items())
        ]
        return tuple((float(mean[2]), float(mean[3])) for mean in means)

    def _fit(self) -> None:
        weight = self._weights / self._weights.sum()
        mean = weight @ self._means
        apart = self._means - mean
        moments = (apart * weight[:, None]).T @ apart
        slopes = _least_squares(moments[:3, :3], moments[:3, 3], mean[:3])
        explained = float(slopes @ mean[:3])
        if explained > mean[3]:  # more than there is: nothing would be left for the weights
            slopes *= mean[3] / explained
        self.row, padded, self.each = map(float, slopes)
        self.padded = padded / LONG
        self.fixed = max(0.0, float(mean[3] - slopes @ mean[:3]))

    def of(self, tokens: int, rows: int = 1, longest: int = 0) -> float:
        """Seconds that such a step is expected to take."""
        return self.fixed + rows * (self.row + self.padded * longest) + self.each * tokens


def _least_squares(moments: Floats, shared: Floats, mean: Floats) -> Floats:
    """Slopes of at least 0: the most negative one is dropped until none is."""
    slopes = np.zeros(len(shared))
    # What varies less than its own size by far cannot be told from the constant.
    used = [i for i in range(len(shared)) if moments[i, i] > 1e-9 * max(1.0, mean[i] ** 2)]
    while used:
        part = moments[np.ix_(used, used)]
        pull = RIDGE * np.diag(np.diag(part))
        found = np.linalg.solve(part + pull, shared[used])
        worst = int(found.argmin())
        if found[worst] >= 0:
            slopes[used] = found
            break
        del used[worst]
    return slopes
