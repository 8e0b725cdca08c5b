"""Named layers of published models, one file a family.

Each family file holds `PRESETS`, a dict name -> LayerSpec.
"""

from moe_ref._errors import require_choice
from moe_ref.spec._layer import LayerSpec
from moe_ref.spec.presets import (
    _dbrx,
    _deepseek,
    _ernie,
    _glm4,
    _gpt_oss,
    _granite,
    _jamba,
    _jetmoe,
    _laguna,
    _lfm2,
    _llama4,
    _longcat,
    _minimax,
    _mixtral,
    _nemotron,
    _olmoe,
    _qwen,
    _switch,
)

_FAMILIES = (
    _dbrx,
    _deepseek,
    _ernie,
    _glm4,
    _gpt_oss,
    _granite,
    _jamba,
    _jetmoe,
    _laguna,
    _lfm2,
    _llama4,
    _longcat,
    _minimax,
    _mixtral,
    _nemotron,
    _olmoe,
    _qwen,
    _switch,
)
_PRESETS: dict[str, LayerSpec] = {
    name: spec for family in _FAMILIES for name, spec in family.PRESETS.items()
}


def presets() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    return tuple(sorted(_PRESETS))


def preset(name: str) -> LayerSpec:
    """The layer of a published model.

    Args:
        name: one of `presets()`.

    Returns:
        Its `LayerSpec`; `.source` names the file and version it was read from.

    Raises:
        ValueError: an unknown name.

    Example:
        ```python
        from moe_ref.spec import preset

        assert preset("deepseek-v3").router.k == 8
        ```
    """
    require_choice(name, "name", _PRESETS)
    return _PRESETS[name]
