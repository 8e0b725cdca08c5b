"""What a Mixture-of-Experts layer computes, and whether your kernel computes it."""

from moe_ref import conformance as conformance
from moe_ref import dispatch as dispatch
from moe_ref import experts as experts
from moe_ref import grouped as grouped
from moe_ref import layers as layers
from moe_ref import models as models
from moe_ref import mx as mx
from moe_ref import oracle as oracle
from moe_ref import parallel as parallel
from moe_ref import routing as routing
from moe_ref import spec as spec

__version__ = "0.1.0"
