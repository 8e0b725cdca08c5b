"""The router and the Mixture-of-Experts layer, and the ways to execute it."""

from moe_ref.layers._aux import Aux as Aux
from moe_ref.layers._aux import Losses as Losses
from moe_ref.layers._capacity import Capacity as Capacity
from moe_ref.layers._dense import Dense as Dense
from moe_ref.layers._dropless import Dropless as Dropless
from moe_ref.layers._execution import Execution as Execution
from moe_ref.layers._moe import MoE as MoE
from moe_ref.layers._router import Router as Router
