"""What is computed, described without arrays."""

from moe_ref.spec._capacity import CapacitySpec as CapacitySpec
from moe_ref.spec._experts import ExpertSpec as ExpertSpec
from moe_ref.spec._layer import LayerSpec as LayerSpec
from moe_ref.spec._numerics import Numerics as Numerics
from moe_ref.spec._router import RouterSpec as RouterSpec
from moe_ref.spec.presets import preset as preset
from moe_ref.spec.presets import presets as presets
