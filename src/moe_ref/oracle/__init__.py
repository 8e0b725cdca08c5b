"""The layer in NumPy float64, written from the formulas, with a bound on what rounding may do."""

from moe_ref.oracle._decide import RouteResult as RouteResult
from moe_ref.oracle._declared import numerics_for as numerics_for
from moe_ref.oracle._exchange import CombineGradients as CombineGradients
from moe_ref.oracle._exchange import combine as combine
from moe_ref.oracle._exchange import combine_vjp as combine_vjp
from moe_ref.oracle._gradients import FeedForwardGradient as FeedForwardGradient
from moe_ref.oracle._gradients import Gradients as Gradients
from moe_ref.oracle._grouped import GroupedGradients as GroupedGradients
from moe_ref.oracle._grouped import grouped_matmul as grouped_matmul
from moe_ref.oracle._grouped import grouped_matmul_vjp as grouped_matmul_vjp
from moe_ref.oracle._layer import layer as layer
from moe_ref.oracle._layer_result import LayerResult as LayerResult
from moe_ref.oracle._layer_result import deaf as deaf
from moe_ref.oracle._layer_result import resolution as resolution
from moe_ref.oracle._permutation import Permutation as Permutation
from moe_ref.oracle._permutation import Traffic as Traffic
from moe_ref.oracle._permutation import permutation as permutation
from moe_ref.oracle._permutation import traffic as traffic
from moe_ref.oracle._ratio import ratio as ratio
from moe_ref.oracle._route import acceptable as acceptable
from moe_ref.oracle._route import route as route
from moe_ref.oracle._route_vjp import route_vjp as route_vjp
from moe_ref.oracle._value import Value as Value
from moe_ref.oracle._vjp_layer import layer_vjp as layer_vjp
from moe_ref.oracle._vjp_route import RouterGradient as RouterGradient
