r"""Sums of few terms that arrive one expert at a time, in an order that is not known.

For n terms in a format of unit roundoff u, products included, the error of adding is at most
$\gamma_w(n) \sum |\mathrm{term}|$: k is small, so the worst case costs nothing.
"""

import numpy as np

from moe_ref.oracle._dot import gamma_worst
from moe_ref.oracle._formats import UNIT, Format
from moe_ref.oracle._value import Value, bounded


class Sum:
    """A running sum of rows.

    Args:
        shape: of the result.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.value = np.zeros(shape)
        self.mass = np.zeros(shape)
        self._worst_mass = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._bound = np.zeros(shape)
        self._worst = np.zeros(shape)
        self._systematic = np.zeros(shape)
        self._independent_squared = np.zeros(shape)
        self._variance = np.zeros(shape)

    def add(self, rows: np.ndarray, term: Value, mass: np.ndarray | None = None) -> None:
        """Add a term to some rows.

        Args:
            rows: [n] indices; may repeat.
            term: [n, ...].
            mass: the magnitudes that the term is itself a sum of, where another order of
                summation may mix them with the other terms.
        """
        extra = 0.0 if mass is None else mass - np.abs(term.value)
        for total, part in (
            (self.value, term.value),
            (self.mass, term.size + extra),
            (self._worst_mass, term.largest + extra),
            (self._squares, term.value**2),
            (self._bound, term.bound),
            (self._worst, term.worst),
            (self._systematic, term.systematic),
            (self._independent_squared, term.independent**2),
            (self._variance, term.variance),
        ):
            np.add.at(total, rows, part)

    def total(self, n: int, format: Format) -> Value:
        """The sum of n terms in `format`; rows without terms are exactly 0."""
        gamma = gamma_worst(n, format.unit) + gamma_worst(n, UNIT)
        some = self._worst_mass != 0
        error = gamma * self.mass + np.where(some, n * format.eta, 0.0)
        overflow = np.where(self.mass > format.max, np.inf, 0.0)
        typical = format.unit**2 * n * (self.value**2 + self._squares) / 6
        return bounded(
            self.value,
            self._bound + error + overflow,
            self._worst + error + gamma * (self._worst_mass - self.mass) + overflow,
            self._systematic + error + overflow,
            np.sqrt(self._independent_squared),
            self._variance + typical,
        )
