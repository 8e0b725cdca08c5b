"""Expert parallelism: experts on many devices, tokens sent to them and back."""

from moe_ref.parallel._emulate import emulate_ragged_all_to_all as emulate_ragged_all_to_all
from moe_ref.parallel._execution import ExpertParallel as ExpertParallel
from moe_ref.parallel._hlo import Collective as Collective
from moe_ref.parallel._hlo import bytes_by_axis as bytes_by_axis
from moe_ref.parallel._hlo import collectives as collectives
from moe_ref.parallel._level import Bounded as Bounded
from moe_ref.parallel._pieces import Dispatched as Dispatched
from moe_ref.parallel._pieces import combine as combine
from moe_ref.parallel._pieces import dispatch as dispatch
from moe_ref.parallel._plan import ExchangePlan as ExchangePlan
from moe_ref.parallel._plan import exchange_plan as exchange_plan
from moe_ref.parallel._plan import expected_destinations as expected_destinations
from moe_ref.parallel._time_limit import time_limit as time_limit
