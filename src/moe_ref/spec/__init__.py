"""What is computed, described without arrays."""

from moe_ref.spec._capacity import CapacitySpec as CapacitySpec
from moe_ref.spec._capacity import DropOrder as DropOrder
from moe_ref.spec._capacity import Rounding as Rounding
from moe_ref.spec._experts import ExpertSpec as ExpertSpec
from moe_ref.spec._layer import LayerSpec as LayerSpec
from moe_ref.spec._layer import WeightSite as WeightSite
from moe_ref.spec._mx import MXSpec as MXSpec
from moe_ref.spec._numerics import Numerics as Numerics
from moe_ref.spec._router import RouterSpec as RouterSpec
from moe_ref.spec.presets import preset as preset
from moe_ref.spec.presets import presets as presets

SPEC_VERSION = 1
"""Raised with every change of a reference value, a tie rule or a bound; see the changelog."""
