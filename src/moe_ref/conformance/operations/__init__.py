"""The operations that can be judged: how each is called, and what it gives back."""

from moe_ref.conformance.operations._call import Method as Method
from moe_ref.conformance.operations._call import Outputs as Outputs
from moe_ref.conformance.operations._call import Refused as Refused
from moe_ref.conformance.operations._call import evaluate as evaluate
from moe_ref.conformance.operations._call import evaluate_all as evaluate_all
from moe_ref.conformance.operations._call import moving as moving
from moe_ref.conformance.operations._dispatch_combine import DISPATCH_COMBINE
from moe_ref.conformance.operations._grouped import GROUPED_MATMUL
from moe_ref.conformance.operations._grouped_mx import GROUPED_MATMUL_MX
from moe_ref.conformance.operations._layer import LAYER
from moe_ref.conformance.operations._libraries import LIBRARIES as LIBRARIES
from moe_ref.conformance.operations._losses import LOSSES
from moe_ref.conformance.operations._operation import Form as Form
from moe_ref.conformance.operations._operation import Operation as Operation
from moe_ref.conformance.operations._plan import PLAN
from moe_ref.conformance.operations._quantize import QUANTIZE
from moe_ref.conformance.operations._returned import Unusable as Unusable
from moe_ref.conformance.operations._returned import said as said
from moe_ref.conformance.operations._route import ROUTE

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        ROUTE,
        LOSSES,
        PLAN,
        GROUPED_MATMUL,
        GROUPED_MATMUL_MX,
        LAYER,
        DISPATCH_COMBINE,
        QUANTIZE,
    )
}
