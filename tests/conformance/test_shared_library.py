"""A grouped matmul in C, compiled here, judged through ctypes."""

import shutil
import subprocess

import pytest

from moe_ref import conformance

CC = shutil.which("cc")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler `cc`")

# Expert e reads the weight of expert WEIGHT; with CRASH, a NULL is written to without rows.
SOURCE = """
#include <stdint.h>
#ifndef WEIGHT
#define WEIGHT e
#endif

int mine(int64_t rows, int64_t k, int64_t n, int64_t experts, const void *x, const void *w,
         const int32_t *group_sizes, void *y, int dtype) {
  if (dtype != 0) return 1;
#ifdef CRASH
  if (rows == 0) *(volatile int *)0 = 1;
#endif
  const float *a = x, *b = w;
  float *c = y;
  int64_t row = 0;
  for (int64_t e = 0; e < experts; e++)
    for (int64_t last = row + group_sizes[e]; row < last; row++)
      for (int64_t j = 0; j < n; j++) {
        float sum = 0;
        for (int64_t i = 0; i < k; i++) sum += a[row * k + i] * b[((WEIGHT) * k + i) * n + j];
        c[row * n + j] = sum;
      }
  return 0;
}
"""


@pytest.fixture
def compiled(tmp_path):
    def compile_with(*flags):
        source, library = tmp_path / "mine.c", tmp_path / "mine.so"
        source.write_text(SOURCE)
        command = [CC, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", *flags]
        subprocess.run([*command, "-o", library, source], check=True)
        return library

    return compile_with


@pytest.mark.slow
def test_a_right_one_passes(compiled):
    kernel = conformance.from_shared_library(compiled(), "mine", dtypes=("float32",))
    assert (kernel.name, kernel.op, kernel.arrays) == ("mine.so:mine", "grouped_matmul", "numpy")
    values = [c.id for c in conformance.checks("grouped_matmul") if c.method == "value"]
    report = conformance.run(kernel, only=values)
    assert report.ok, [(r.id, r.status, r.detail) for r in report.results if r.status != "pass"]
    # A zero tail and batch invariance are not declared; float32 is not narrow.
    skipped = {r.id for r in report.results if r.status == "skipped"}
    assert skipped == {"GRP-09", "GRP-19", "GRP-25"}


@pytest.mark.parametrize("weight", ["(e+1)%experts", "0", "experts-1-e"])
def test_a_wrong_one_fails(compiled, weight):
    library = compiled(f"-DWEIGHT={weight}")
    kernel = conformance.from_shared_library(library, "mine", dtypes=("float32",))
    report = conformance.run(kernel, only=["GRP-02", "GRP-04", "GRP-13"], shrink_seconds=0)
    assert {r.id: r.status for r in report.results}["GRP-13"] == "fail"
    assert {r.id: r.status for r in report.results}["GRP-02"] == "fail"


def test_a_crash_is_a_failed_check(compiled):
    kernel = conformance.load_target(f"{compiled('-DCRASH')}:mine")
    report = conformance.run(kernel, only=["GRP-05"], shrink_seconds=0)
    assert "killed by signal 11" in report.results[0].detail


def test_declined_dtypes_fail_where_they_are_declared(compiled):
    """A library that is said to take bfloat16, and returns 1 for it."""
    kernel = conformance.from_shared_library(compiled(), "mine", dtypes=("bfloat16",))
    (result,) = conformance.run(kernel, only=["GRP-13"]).results
    assert (result.status, "mine returned 1" in result.detail) == ("fail", True)


def test_what_is_not_there_is_told(compiled, tmp_path):
    library = compiled()
    with pytest.raises(ValueError, match="has no symbol 'other'"):
        conformance.load_target(f"{library}:other")
    with pytest.raises(ValueError, match="must be a shared library"):
        conformance.load_target(f"{tmp_path / 'absent.so'}:mine")
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(ValueError, match="must be a shared library"):
        conformance.load_target(f"{tmp_path / 'text.so'}:mine")
    for option in ({"op": "route"}, {"arrays": "jax"}):
        with pytest.raises(ValueError, match=r"as .* declares"):
            conformance.load_target(f"{library}:mine", **option)
