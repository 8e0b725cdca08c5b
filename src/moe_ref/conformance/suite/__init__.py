"""The checks, one file an aspect of an operation, and the inputs they are tried on."""

from moe_ref.conformance.suite._all import checks as checks
