"""Kernels whose value is right alone and wrong beside a gradient, and ones that are right."""

import numpy as np

from moe_ref.conformance._implementation import Implementation
from moe_ref.conformance.mutants._autodiff import autodiff
from moe_ref.conformance.mutants._dispatch_combine_kernel import Exchange
from moe_ref.conformance.mutants._grouped_kernel import Kernel
from moe_ref.conformance.mutants._grouped_mx_kernel import Kernel as BlockKernel
from moe_ref.conformance.mutants._layer_kernel import Layer
from moe_ref.conformance.mutants._losses_kernel import Losses
from moe_ref.conformance.mutants._mutant import Mutant
from moe_ref.conformance.mutants._plan_kernel import Plan
from moe_ref.conformance.mutants._route_kernel import Router, narrow


class _NarrowRows(Kernel):
    """Beside a gradient, results are kept in bfloat16."""

    def narrow(self, sums, like):
        return super().narrow(narrow(sums), like)


class _OnlyRows(BlockKernel):
    """Beside a gradient, the weights are multiplied in high precision."""

    def matrix(self, w, expert):
        return w[expert].astype(np.float32)


class _Unscaled(Router):
    """Beside a gradient, weights are not scaled yet."""

    def scaled(self, w, spec):
        return w


class _NotSquared(Losses):
    """Beside a gradient, the z loss is the mean logarithm, not its square."""

    def penalty(self, logarithm):
        return logarithm


class _Unweighted(Plan):
    """Beside a gradient, rows come back without their weights."""

    def used(self, weights, kept):
        return kept.astype(np.float32)


class _NarrowSum(Layer):
    """Beside a gradient, the sum over slots is rounded to bfloat16 after every step."""

    def add(self, total, rows, term):
        total[rows] = narrow(total[rows] + term)


class _FirstRankLost(Exchange):
    """Beside a gradient, the partial sums of rank 0 do not come back."""

    def combine(self, sent, back, shape):
        return super().combine(sent, back * (sent.goal > 0)[:, None], shape)


_RIGHT = {
    "grouped_matmul": Kernel(),
    "grouped_matmul_mx": BlockKernel(),
    "route": Router(),
    "losses": Losses(),
    "plan": Plan(),
    "layer": Layer(),
    "dispatch_combine": Exchange(),
}
_WRONG = {
    "grouped_matmul": (_NarrowRows(), "GRP-65"),
    "grouped_matmul_mx": (_OnlyRows(), "MXG-76"),
    "route": (_Unscaled(), "RTE-29"),
    "losses": (_NotSquared(), "LOS-24"),
    "plan": (_Unweighted(), "PLN-49"),
    "layer": (_NarrowSum(), "LAY-36"),
    "dispatch_combine": (_FirstRankLost(), "EXC-62"),
}
# By operation.
CORRECT: dict[str, Implementation] = {
    op: autodiff(f"{op}, Autodiff", op, kernel) for op, kernel in _RIGHT.items()
}
MUTANTS: dict[str, Mutant] = {
    op: Mutant(
        implementation=autodiff(f"{op}, Alongside", op, _RIGHT[op], wrong),
        fault=str(wrong.__doc__),
        killers=(check,),
    )
    for op, (wrong, check) in _WRONG.items()
}
