"""What is known of one model type: its rule, which layers are MoE layers, where tensors are."""

import dataclasses
from collections.abc import Callable

from moe_ref.models._config import Config
from moe_ref.models._errors import CheckpointError
from moe_ref.models._layout import Layout
from moe_ref.spec import LayerSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """One stack of layers: the only one, or an encoder or a decoder.

    Args:
        moe: whether each layer is an MoE layer.
        prefixes: names its MoE block may go by; `{layer}` stands for the layer's number.
        name: of the stack, "" for the only one.
    """

    moe: Callable[[Config], list[bool]]
    prefixes: tuple[str, ...]
    name: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """One kind of MoE block in Hugging Face checkpoints.

    Args:
        model_types: `model_type` of config.json.
        spec: the layer, from a configuration and the layer's number.
        stacks: the stacks of layers; an integer `layer` means the first.
        layout: where the parameters are.
    """

    model_types: tuple[str, ...]
    spec: Callable[[Config, int], LayerSpec]
    stacks: tuple[Stack, ...]
    layout: Layout

    def locate(self, config: Config, layer: int | str) -> tuple[Stack, int]:
        """The stack and the number of an MoE layer.

        Args:
            config: the configuration.
            layer: number in the first stack, or "decoder.1".

        Returns:
            Stack and number.

        Raises:
            CheckpointError: no such layer, or a dense one.
        """
        stack, number = self.stacks[0], layer
        if isinstance(layer, str):
            name, _, digits = layer.rpartition(".")
            named = [each for each in self.stacks if each.name and each.name == name]
            if not named or not digits.isdecimal():
                wanted = [f'"{each.name}.N"' for each in self.stacks if each.name]
                choice = " or ".join(["an integer", *wanted])
                raise CheckpointError(f"{config.where}: `layer` must be {choice}; got {layer!r}.")
            stack, number = named[0], int(digits)
        is_moe = stack.moe(config)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(is_moe):
            raise CheckpointError(
                f"{config.where}: `layer` must be in [0, {len(is_moe)}); got {layer!r}."
            )
        if not is_moe[number]:
            known = spans([i for i, each in enumerate(is_moe) if each])
            raise CheckpointError(
                f"{config.where}: `layer` must be an MoE layer, one of {known or 'none at all'}; "
                f"got {layer!r}, which is dense."
            )
        return stack, number


def spans(numbers: list[int]) -> str:
    """Increasing numbers in short: "1-3, 5, 7-9"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in runs)
