"""Grouped matmul: consecutive runs of rows, each multiplied by the matrix of its own expert.

| file | what it holds |
|---|---|
| `_matmul.py` | the public operation, its checks and its gradient |
| `_groups.py` | group sizes: offsets, owners, validation |
| `_kernel.py` | what an implementation must provide |
| `_registry.py` | the table of implementations; one row each |
| `_loop.py`, `_xla.py`, `_blocked.py` | implementations for any device |
| `_mosaic.py`, `_mosaic_*.py` | the implementation for NVIDIA Hopper |
"""

from moe_ref.grouped._groups import validate_group_sizes as validate_group_sizes
from moe_ref.grouped._matmul import grouped_matmul as grouped_matmul
from moe_ref.grouped._registry import implementations as implementations
