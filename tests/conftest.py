"""Set up every test run: run-time shape checks, strict JAX, hypothesis profiles."""

import os

import hypothesis
import jax
from jaxtyping import install_import_hook

# Shapes and dtypes of private functions are checked too; this must come before moe_ref is imported.
install_import_hook("moe_ref", "beartype.beartype")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

COMMON = {"deadline": None, "print_blob": True}
hypothesis.settings.register_profile("local", max_examples=25, derandomize=True, **COMMON)
hypothesis.settings.register_profile("ci", max_examples=25, derandomize=True, **COMMON)
hypothesis.settings.register_profile("thorough", max_examples=500, **COMMON)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")
