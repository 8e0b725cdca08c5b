"""`grouped_matmul_mx`: a grouped matmul that writes its operands in MX blocks."""

import dataclasses

from moe_ref.conformance.operations._grouped import GROUPED_MATMUL

GROUPED_MATMUL_MX = dataclasses.replace(
    GROUPED_MATMUL,
    name="grouped_matmul_mx",
    signature=(
        "f(x [rows, k], w [experts, k, n], group_sizes [experts]) -> [rows, n], with x and w in "
        "high precision, quantised along k in blocks of 32, as `mx` declares: without it E4M3 "
        "under rceil"
    ),
    gradient=(
        "vjp(x, w, group_sizes, cotangent [rows, n]) -> (dx, dw): dx of operands quantised along "
        "n, dw of operands quantised along the rows of each expert, or as `mx.wgrad` declares"
    ),
)
