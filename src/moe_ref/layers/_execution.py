"""The interface of a way to execute the routed experts."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from moe_ref.experts import Experts
from moe_ref.spec import LayerSpec


class Execution(eqx.Module):
    """Computes $\\sum_j w_j\\,\\mathrm{expert}_{id_j}(x)$ for every token.

    A new way to execute a layer is a subclass; the layer calls it once.
    """

    @abc.abstractmethod
    def __call__(
        self,
        x: Float[Array, "tokens d_expert"],
        ids: Int[Array, "tokens k"],
        weights: Float[Array, "tokens k"],
        experts: Experts,
        *,
        spec: LayerSpec,
    ) -> tuple[Float[Array, "tokens d_expert"], Bool[Array, "tokens k"]]:
        """Run the experts.

        Args:
            x: what the experts read.
            ids: expert of each slot; ids outside [0, num_experts) contribute nothing here.
            weights: weight of each slot.
            experts: parameters.
            spec: the layer.

        Returns:
            The sums in float32 at least, not yet rounded, and which slots were processed.
        """

    def per_token(
        self, function: Callable[..., Any], parameters: Any, *arrays: Any, **static: Any
    ) -> Any:
        """Call a function that treats each token alone, on the devices where the tokens are.

        Args:
            function: of `parameters`, `arrays` and `static`.
            parameters: arrays that every token reads.
            *arrays: trees of arrays with one row a token.
            **static: hashable.

        Returns:
            A tree of arrays with one row a token.
        """
        return function(parameters, *arrays, **static)

    def token_axes(self) -> tuple[str, ...]:
        """Mesh axes that the tokens at hand are divided over, inside `jax.shard_map`.

        Loads and losses are summed over them. None: the tokens at hand are all there are.
        """
        return ()

    def overflow(
        self, ids: Int[Array, "tokens k"], kept: Bool[Array, "tokens k"], *, spec: LayerSpec
    ) -> Int[Array, "sources destinations"] | None:
        """Rows that found no place in a receive buffer, from rank to rank; None without ranks.

        Args:
            ids: expert of each slot.
            kept: which slots were processed.
            spec: the layer.
        """
        return None
