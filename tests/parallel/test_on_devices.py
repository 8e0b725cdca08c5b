"""Run the tests that need several devices, each file in a process that has them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# A rank that waits for ever stops the process, with a message, after so many seconds.
STUCK = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=20"
    " --xla_cpu_collective_call_terminate_timeout_seconds=60"
)


def run_on(devices: int, file: str, *options: str) -> None:
    flags = f"--xla_force_host_platform_device_count={devices} {STUCK}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider",
         *options, str(HERE / file)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["devices", "bounded", "inside", "wire"])
def test_eight_devices(file):
    run_on(8, f"on_eight_{file}.py")


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["devices", "wire"])
def test_eight_devices_in_more_ways(file):
    run_on(8, f"on_eight_{file}.py", "-m", "thorough")


@pytest.mark.slow
def test_programs_for_many_devices():
    run_on(256, "on_many_devices.py")


@pytest.mark.thorough
def test_more_programs_for_many_devices():
    run_on(256, "on_many_devices.py", "-m", "thorough")


@pytest.mark.thorough
def test_sixteen_and_sixty_four_devices():
    run_on(64, "on_more_devices.py")


@pytest.mark.thorough
def test_a_thousand_devices():
    run_on(1024, "on_a_thousand_devices.py")
