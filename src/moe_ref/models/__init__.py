"""Checkpoints and configurations of Hugging Face models as specs and layers."""

from moe_ref.models._errors import CheckpointError as CheckpointError
from moe_ref.models._load import load_layer as load_layer
from moe_ref.models._read import read_layer as read_layer
from moe_ref.models._read import read_spec as read_spec
from moe_ref.models._read import spec_from_config as spec_from_config
