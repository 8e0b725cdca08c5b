"""Where checkpoints keep the parameters of an MoE block, and in which shape."""

import dataclasses
from typing import Protocol, runtime_checkable

import numpy as np

from moe_ref.models._block import Block
from moe_ref.spec import ExpertSpec

Names = tuple[str, ...]
Arrays = dict[str, np.ndarray | None]


@runtime_checkable
class ExpertLayout(Protocol):
    """Where the parameters of expert networks are kept."""

    def names(self, experts: int | None) -> Names:
        """Names of all tensors of so many experts; None: of the shared expert."""
        ...

    def read(self, block: Block, spec: ExpertSpec, *, width: int, experts: int | None) -> Arrays:
        """Read `w_in`, `w_out`, `b_in` and `b_out`.

        Args:
            block: where they are stored.
            spec: sizes.
            width: of what the experts read and write.
            experts: number of experts, the leading axis; None: the shared expert, without one.

        Returns:
            The arrays by name, columns of `w_in` gate first.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Separate:
    """One tensor a projection and expert, [out, in] as `torch.nn.Linear` has it.

    `{e}` in a name stands for the expert's number; `gate` is None where the spec has no gate.
    """

    gate: str | None
    up: str
    down: str

    def names(self, experts: int | None) -> Names:
        """See `ExpertLayout`."""
        mine = [name for name in (self.gate, self.up, self.down) if name is not None]
        return tuple(name.format(e=e) for e in range(experts or 1) for name in mine)

    def read(self, block: Block, spec: ExpertSpec, *, width: int, experts: int | None) -> Arrays:
        """See `ExpertLayout`."""
        hidden, number = spec.d_hidden, experts or 1
        parts = [self.up] if self.gate is None else [self.gate, self.up]
        kind_in, kind_out = (block.float_dtype(n.format(e=0)) for n in (parts[0], self.down))
        w_in = np.empty((number, width, spec.columns), block.target(kind_in))
        w_out = np.empty((number, hidden, width), block.target(kind_out))
        for e in range(number):
            for i, part in enumerate(parts):
                columns = slice(i * hidden, (i + 1) * hidden)
                weight = block.read(part.format(e=e), (hidden, width), kinds=(kind_in,))
                w_in[e, :, columns] = weight.T
            w_out[e] = block.read(self.down.format(e=e), (width, hidden), kinds=(kind_out,)).T
        if experts is None:
            w_in, w_out = w_in[0], w_out[0]
        return {"w_in": w_in, "w_out": w_out, "b_in": None, "b_out": None}


@dataclasses.dataclass(frozen=True)
class Fused:
    """All experts in one tensor, gate and up side by side.

    The layout is named here and never guessed: where d_model equals the number of columns, a
    transposed weight has the same shape.

    Args:
        w_in: name; [experts, columns, in].
        w_out: name; [experts, out, d_hidden].
        b_in: name of [experts, columns], or None.
        b_out: name of [experts, out], or None.
        transposed: the weights are [experts, in, columns] and [experts, d_hidden, out].
        interleaved: columns are gate 0, up 0, gate 1, up 1, ... (gpt-oss).
    """

    w_in: str
    w_out: str
    b_in: str | None = None
    b_out: str | None = None
    transposed: bool = False
    interleaved: bool = False

    def names(self, experts: int | None) -> Names:
        """See `ExpertLayout`."""
        every = (self.w_in, self.w_out, self.b_in, self.b_out)
        return tuple(name for name in every if name is not None)

    def read(self, block: Block, spec: ExpertSpec, *, width: int, experts: int | None) -> Arrays:
        """See `ExpertLayout`."""
        hidden, columns, number = spec.d_hidden, spec.columns, experts or 1
        w_in = self._weight(block, self.w_in, (number, width, columns))
        w_out = self._weight(block, self.w_out, (number, hidden, width))
        b_in = None if self.b_in is None else block.array(self.b_in, (number, columns))
        b_out = None if self.b_out is None else block.array(self.b_out, (number, width))
        if self.interleaved:
            w_in, b_in = _gate_first(w_in), None if b_in is None else _gate_first(b_in)
        return {"w_in": w_in, "w_out": w_out, "b_in": b_in, "b_out": b_out}

    def _weight(self, block: Block, name: str, shape: tuple[int, int, int]) -> np.ndarray:
        experts, rows, columns = shape
        if self.transposed:
            return block.array(name, shape)
        stored = block.array(name, (experts, columns, rows))
        return np.ascontiguousarray(stored.swapaxes(1, 2))


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Experts below each other in matrices of experts * d_hidden rows (DBRX)."""

    gate: str
    up: str
    down: str

    def names(self, experts: int | None) -> Names:
        """See `ExpertLayout`."""
        return (self.gate, self.up, self.down)

    def read(self, block: Block, spec: ExpertSpec, *, width: int, experts: int | None) -> Arrays:
        """See `ExpertLayout`."""
        number, hidden = experts or 1, spec.d_hidden

        def matrices(name: str) -> np.ndarray:
            return block.array(name, (number * hidden, width)).reshape(number, hidden, width)

        gate_up = np.concatenate([matrices(self.gate), matrices(self.up)], axis=1)
        return {
            "w_in": np.ascontiguousarray(gate_up.swapaxes(1, 2)),
            "w_out": matrices(self.down),
            "b_in": None,
            "b_out": None,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Names below the block's prefix. A tuple holds alternatives, the most usual first.

    What the spec does not have is not looked for. Biases and gates of width 1 are vectors.

    Args:
        router: projection, [choices, d_model].
        router_bias: [choices].
        selection_bias: [choices].
        selection_bias_row: it is stored as [1, choices].
        table: experts of each token id, [vocab, k].
        experts: the ways the routed experts may be kept.
        shared: the ways the shared expert may be kept.
        shared_gate: [1, d_model].
        latent_in: [d_latent, d_model].
        latent_out: [d_model, d_latent].
        output_bias: [d_model].
        ignored: pattern of further names that transformers reads and never uses.
    """

    router: Names
    experts: tuple[ExpertLayout, ...]
    router_bias: Names = ()
    selection_bias: Names = ()
    selection_bias_row: bool = False
    table: Names = ()
    shared: tuple[ExpertLayout, ...] = ()
    shared_gate: Names = ()
    latent_in: Names = ()
    latent_out: Names = ()
    output_bias: Names = ()
    ignored: str | None = None


def _gate_first(columns: np.ndarray) -> np.ndarray:
    return np.concatenate([columns[..., ::2], columns[..., 1::2]], axis=-1)
