"""Division whose derivative survives small denominators."""

import jax
from jaxtyping import Array, Float


@jax.custom_jvp
def divide(
    numerator: Float[Array, "tokens n"], denominator: Float[Array, "tokens 1"]
) -> Float[Array, "tokens n"]:
    """The quotient, with a derivative that does not square the denominator.

    JAX's own multiplies by denominator^-2, which overflows where all scores of a token are small:
    below 1e-19 in float32, a sigmoid of -44, it makes the gradient Inf or NaN.
    """
    return numerator / denominator


@divide.defjvp
def _divide_jvp(primals, tangents):
    quotient = divide(*primals)
    return quotient, (tangents[0] - quotient * tangents[1]) / primals[1]
