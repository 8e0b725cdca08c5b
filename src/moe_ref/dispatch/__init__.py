"""Where each token's copies go: plans by sorting or by capacity, permute, unpermute, combine."""

from moe_ref.dispatch._capacity import plan_capacity as plan_capacity
from moe_ref.dispatch._move import combine as combine
from moe_ref.dispatch._move import permute as permute
from moe_ref.dispatch._move import permute_weights as permute_weights
from moe_ref.dispatch._move import unpermute as unpermute
from moe_ref.dispatch._plan import Plan as Plan
from moe_ref.dispatch._plan import plan as plan
