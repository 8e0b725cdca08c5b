"""Hugging Face model types, one file a family.

Each file holds `ARCHITECTURES`: a preset's rule with the sizes and flags of a configuration.
"""

from moe_ref.models._architecture import Architecture
from moe_ref.models.families import (
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

# model_type -> what is known of it.
ARCHITECTURES: dict[str, Architecture] = {
    model_type: architecture
    for family in _FAMILIES
    for architecture in family.ARCHITECTURES
    for model_type in architecture.model_types
}
