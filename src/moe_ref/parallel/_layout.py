"""What lies on which axis of the mesh."""

from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

from moe_ref._errors import require
from moe_ref.experts import Experts
from moe_ref.layers import MoE
from moe_ref.spec import ExpertSpec


class Layout(NamedTuple):
    """Axes of a mesh.

    Attributes:
        axes: of the experts.
        data: of tokens alone.
        tensor: of the hidden width.
    """

    axes: tuple[str, ...]
    data: tuple[str, ...]
    tensor: str | None

    @property
    def tokens(self) -> tuple[str, ...]:
        """Axes that tokens are divided over."""
        return (*self.data, *self.axes)

    @property
    def all(self) -> tuple[str, ...]:
        """All axes in use."""
        return self.tokens if self.tensor is None else (*self.tokens, self.tensor)


def check_mesh(mesh: Mesh, layout: Layout) -> None:
    """Raise ValueError for axes that the mesh does not have, or that are used twice."""
    known = tuple(mesh.axis_names)
    require(1 <= len(layout.axes) <= 2, "axes", "one mesh axis or two", layout.axes)
    groups = {"axes": layout.axes, "data": layout.data}
    groups["tensor"] = () if layout.tensor is None else (layout.tensor,)
    for argument, axes in groups.items():
        unknown = [axis for axis in axes if axis not in known]
        require(not unknown, argument, f"of the mesh's axes {known}", unknown)
    every = layout.all
    require(len(set(every)) == len(every), "axes", "different from each other", every)
    kinds = dict(zip(known, mesh.axis_types, strict=True))
    automatic = all(kinds[axis] == AxisType.Auto for axis in every)
    require(automatic, "mesh", "of axes of type Auto", {axis: kinds[axis].name for axis in every})


def named(experts: Experts) -> dict[str, jax.Array]:
    """The parameters there are, by name."""
    every = {name: getattr(experts, name) for name in ("w_in", "w_out", "b_in", "b_out")}
    return {name: array for name, array in every.items() if array is not None}


def split_columns(parameters: dict[str, jax.Array], spec: ExpertSpec) -> dict[str, jax.Array]:
    """Gate and up columns on an axis of their own, so that each can be divided."""
    shape = (spec.columns // spec.d_hidden, spec.d_hidden)
    return {
        name: a.reshape(*a.shape[:-1], *shape) if name in ("w_in", "b_in") else a
        for name, a in parameters.items()
    }


def partition(name: str, layout: Layout) -> jax.P:
    """How a parameter with split columns is divided."""
    experts, tensor = layout.axes, layout.tensor
    return {
        "w_in": jax.P(experts, None, None, tensor),
        "w_out": jax.P(experts, tensor, None),
        "b_in": jax.P(experts, None, tensor),
        "b_out": jax.P(experts, None),
    }[name]


def layer_shardings(mesh: Mesh, layout: Layout, layer: MoE) -> MoE:
    """Shardings of a whole layer; a hidden width that the tensor axis does not divide is whole."""
    hidden = {"w_in": -1, "w_out": -2, "b_in": -1}

    def place(path, leaf) -> NamedSharding:
        part, name = (getattr(key, "name", "") for key in (path[0], path[-1]))
        spec: list = [None] * leaf.ndim
        if part == "experts":
            spec[0] = layout.axes
        axis = hidden.get(name) if part in ("experts", "shared") else None
        if axis is not None and layout.tensor is not None:
            divides = leaf.shape[axis] % mesh.shape[layout.tensor] == 0
            spec[axis] = layout.tensor if divides else None
        return NamedSharding(mesh, jax.P(*spec))

    return jax.tree_util.tree_map_with_path(place, layer)
