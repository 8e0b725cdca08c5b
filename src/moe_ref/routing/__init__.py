"""From hidden states to experts and weights: logits, scores, choice, weights; load and losses."""

from moe_ref.routing._choose import choose as choose
from moe_ref.routing._jitter import jitter as jitter
from moe_ref.routing._load import check_experts as check_experts
from moe_ref.routing._load import expert_load as expert_load
from moe_ref.routing._load import update_selection_bias as update_selection_bias
from moe_ref.routing._logits import router_logits as router_logits
from moe_ref.routing._losses import balance_loss as balance_loss
from moe_ref.routing._losses import z_loss as z_loss
from moe_ref.routing._route import route as route
from moe_ref.routing._routing import Routing as Routing
from moe_ref.routing._scores import router_scores as router_scores
from moe_ref.routing._weights import combine_weights as combine_weights
