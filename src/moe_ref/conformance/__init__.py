"""Judge anyone's kernel: checks with stable ids, an isolated runner, reports."""

from moe_ref.conformance._builtin import builtin as builtin
from moe_ref.conformance._case import Case as Case
from moe_ref.conformance._check import Check as Check
from moe_ref.conformance._full import judge_full as judge_full
from moe_ref.conformance._implementation import Implementation as Implementation
from moe_ref.conformance._parametrize import parametrize as parametrize
from moe_ref.conformance._result import Judgement as Judgement
from moe_ref.conformance._result import Report as Report
from moe_ref.conformance._result import Result as Result
from moe_ref.conformance._run import replay as replay
from moe_ref.conformance._run import run as run
from moe_ref.conformance._shared_library import from_shared_library as from_shared_library
from moe_ref.conformance._target import load_target as load_target
from moe_ref.conformance.operations import OPERATIONS as OPERATIONS
from moe_ref.conformance.operations import Operation as Operation
from moe_ref.conformance.suite._all import checks as checks
