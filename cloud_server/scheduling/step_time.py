"""How long a step of the target takes, fitted while it runs: rows, their longest, tokens.

    seconds = fixed + row * rows + padded * rows * longest + each * tokens

``fixed`` is what reading the weights costs, ``row`` what a row costs whatever is in it, ``padded``
what a cached id of a row costs where every row is as long as the longest, ``each`` what a token
costs. CoSine (arXiv 2503.10325) profiles its cluster over the same three figures.
"""

from __future__ import annotations

from operator import mul

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


class StepTime:
    """Least squares over steps of all kinds, none of the slopes negative.

    Old steps lose weight, but of each kind (to a factor of two in every feature) something is
    remembered: a cloud that only sees long drafts would forget otherwise what it could do without
    them. Of a kind the means are kept: three features and the seconds.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._means: list[tuple[float, float, float, float]] = []
        self._weights: list[float] = []
        self.fixed, self.row, self.padded, self.each = 0.03, 0.0, 0.0, 0.0
        self.known = False
        self._curve: tuple[tuple[float, float], ...] = ()

    def observe(self, rows: int, longest: int, tokens: int, seconds: float) -> None:
        """A step over ``tokens`` of ``rows`` rows, the longest with ``longest`` ids, took so."""
        seen = (float(rows), rows * longest / LONG, float(tokens), seconds)
        key = (rows.bit_length(), longest.bit_length(), tokens.bit_length())
        at = self._kinds.setdefault(key, len(self._kinds))
        self._weights = [max(LEAST_WEIGHT, FORGETTING * weight) for weight in self._weights]
        if at == len(self._means):
            self._means.append(seen)
            self._weights.append(0.0)
        self._weights[at] += 1.0
        gain = max(KIND_GAIN, 1 / self._weights[at])
        one, two, three, four = (
            mean + gain * (new - mean) for mean, new in zip(self._means[at], seen, strict=True)
        )
        self._means[at] = one, two, three, four
        self._fit()
        self.known = True
        if key[2] <= LARGEST_TOLD:
            self._curve = self._told()

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Tokens and seconds of sizes up to that of a long draft, as of the last such step."""
        return self._curve

    def _told(self) -> tuple[tuple[float, float], ...]:
        sizes: dict[int, list[float]] = {}
        for (_, _, bits), at in self._kinds.items():
            if bits <= LARGEST_TOLD:
                weight, (_, _, tokens, seconds) = self._weights[at], self._means[at]
                total = sizes.setdefault(bits, [0.0, 0.0, 0.0])
                total[0] += weight
                total[1] += weight * tokens
                total[2] += weight * seconds
        return tuple((t / weight, s / weight) for _, (weight, t, s) in sorted(sizes.items()))

    def _fit(self) -> None:
        """Plain numbers: every step does this, and the kinds are too few for arrays to pay."""
        total = sum(self._weights)
        share = [weight / total for weight in self._weights]
        columns = list(zip(*self._means, strict=True))
        *sizes, seconds = (sum(map(mul, share, column)) for column in columns)
        apart = [
            [value - mean for value in column]
            for column, mean in zip(columns, (*sizes, seconds), strict=True)
        ]
        weighed = [list(map(mul, share, column)) for column in apart[:3]]
        moments = [[sum(map(mul, one, other)) for other in apart] for one in weighed]
        slopes = _least_squares(moments, sizes)
        explained = sum(map(mul, slopes, sizes))
        if explained > seconds:  # more than there is: nothing would be left for the weights
            slopes = [slope * seconds / explained for slope in slopes]
        self.row, padded, self.each = slopes
        self.padded = padded / LONG
        self.fixed = max(0.0, seconds - sum(map(mul, slopes, sizes)))

    def of(self, tokens: int, rows: int = 1, longest: int = 0) -> float:
        """Seconds that such a step is expected to take."""
        return self.fixed + rows * (self.row + self.padded * longest) + self.each * tokens


def _least_squares(moments: list[list[float]], mean: list[float]) -> list[float]:
    """Slopes of at least 0: the most negative one is dropped until none is.

    ``moments[i][j]``: the covariance of features i and j; the last is what is to be explained.
    """
    slopes = [0.0] * len(mean)
    # What varies less than its own size by far cannot be told from the constant.
    used = [i for i, size in enumerate(mean) if moments[i][i] > 1e-9 * max(1.0, size * size)]
    while used:
        found = _solved(
            [[moments[i][j] * (1 + RIDGE * (i == j)) for j in used] for i in used],
            [moments[i][-1] for i in used],
        )
        worst = min(range(len(used)), key=found.__getitem__)
        if found[worst] >= 0:
            for i, slope in zip(used, found, strict=True):
                slopes[i] = slope
            break
        del used[worst]
    return slopes


def _solved(left: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a few linear equations, positive definite: they need no other order."""
    count = len(right)
    for i in range(count):
        for j in range(i + 1, count):
            factor = left[j][i] / left[i][i]
            left[j] = [a - factor * b for a, b in zip(left[j], left[i], strict=True)]
            right[j] -= factor * right[i]
    for i in reversed(range(count)):
        rest = sum(left[i][j] * right[j] for j in range(i + 1, count))
        right[i] = (right[i] - rest) / left[i][i]
    return right
