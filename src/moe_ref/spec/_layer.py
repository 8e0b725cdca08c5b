"""What a Mixture-of-Experts layer computes, as data."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from moe_ref._errors import require, require_types
from moe_ref.spec._capacity import CapacitySpec
from moe_ref.spec._experts import ExpertSpec
from moe_ref.spec._router import RouterSpec

WeightSite = Literal["output", "hidden", "input"]
"""Where a combine weight multiplies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSpec:
    r"""A layer: $y = \sum_j w_j\,\mathrm{expert}_{id_j}(x)$, plus what is added to it.

    Args:
        d_model: width $D$ of the tokens.
        router: the `RouterSpec`.
        experts: the `ExpertSpec` of the routed experts (and of the shared one, but for its width).
        weight_site: where $w$ multiplies: the expert's `output` (bias included), its `hidden`
            activation (and the output bias: Megatron-LM), or its `input` (Llama 4).
        d_latent: routed experts work on $x W_{latent}$ of this width and are projected back; None
            for none. Router and shared expert see x.
        shared_d_hidden: hidden width of the shared expert every token visits; 0 for none.
        shared_gate: the shared output is multiplied by $\sigma(x \cdot g)$.
        output_bias: one bias vector added after combining (JetMoE).
        capacity: a `CapacitySpec` if the model drops tokens, else None (dropless).
        name: of the preset.
        source: file and version that the numbers were read from.

    Raises:
        ValueError: fields that contradict each other, naming them and their values.
    """

    d_model: int
    router: RouterSpec
    experts: ExpertSpec
    weight_site: WeightSite = "output"
    d_latent: int | None = None
    shared_d_hidden: int = 0
    shared_gate: bool = False
    output_bias: bool = False
    capacity: CapacitySpec | None = None
    name: str = dataclasses.field(default="", compare=False)
    source: str = dataclasses.field(default="", compare=False)

    @property
    def d_expert(self) -> int:
        """Width of what the routed experts read and write."""
        return self.d_latent or self.d_model

    @property
    def shared(self) -> ExpertSpec | None:
        """The shared expert: the routed expert, of another width. None if there is none."""
        if not self.shared_d_hidden:
            return None
        return dataclasses.replace(self.experts, d_hidden=self.shared_d_hidden)

    def __post_init__(self):
        require_types(self)
        require(self.d_model >= 1, "d_model", "at least 1", self.d_model)
        require(
            self.d_latent is None or self.d_latent >= 1,
            "d_latent",
            "positive or None",
            self.d_latent,
        )
        shared = self.shared_d_hidden
        require(shared >= 0, "shared_d_hidden", "at least 0", shared)
        require(
            shared > 0 or not self.shared_gate,
            "shared_gate",
            "False with shared_d_hidden=0",
            self.shared_gate,
        )

    def replace(self, **changes: Any) -> "LayerSpec":
        """A copy with some fields changed; each goes to the record that owns it.

        Args:
            **changes: fields of this record, of `router`, of `experts` or of `capacity`.

        Returns:
            The new spec.

        Raises:
            ValueError: a name that no record has, or values that contradict each other.

        Example:
            ```python
            from moe_ref.spec import preset

            small = preset("deepseek-v3").replace(d_model=64, d_hidden=48, num_experts=16)
            assert small.router.num_experts == 16 and small.experts.d_hidden == 48
            ```
        """
        own = {name: changes.pop(name) for name in _fields(self) if name in changes}
        for part in ("router", "experts", "capacity"):
            record = own.get(part, getattr(self, part))
            if not dataclasses.is_dataclass(record) or isinstance(record, type):
                continue
            mine = {name: changes.pop(name) for name in _fields(record) if name in changes}
            if mine:
                own[part] = dataclasses.replace(record, **mine)
        if changes:
            known = [name for r in (self, self.router, self.experts) for name in _fields(r)]
            known += [field.name for field in dataclasses.fields(CapacitySpec)]
            raise ValueError(
                f"`{next(iter(changes))}` must be a field of the spec: "
                f"{', '.join(sorted(set(known)))}; got {next(iter(changes.values()))!r}."
            )
        return dataclasses.replace(self, **own)

    def to_dict(self) -> dict[str, Any]:
        """Nested dict of plain values, for JSON; `from_dict` is the inverse.

        Example:
            ```python
            from moe_ref.spec import LayerSpec, preset

            spec = preset("deepseek-v3")
            assert LayerSpec.from_dict(spec.to_dict()) == spec
            ```
        """
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "LayerSpec":
        """The spec that `to_dict` was taken of.

        Raises:
            ValueError: a field that no record has, or values that contradict each other.
        """
        made = dict(fields)
        kinds = {"router": RouterSpec, "experts": ExpertSpec, "capacity": CapacitySpec}
        try:
            for name, kind in kinds.items():
                if made.get(name) is not None:
                    made[name] = kind(**made[name])
            return cls(**made)
        except TypeError as error:
            raise ValueError(f"`fields` must be those of a LayerSpec; {error}.") from None


def _fields(record: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(record)]
