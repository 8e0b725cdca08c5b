"""Several processes on this machine: equal to the dense layer; and what if one is gone."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return f"localhost:{probe.getsockname()[1]}"


class Started:
    """Processes with what they print in files; none is left behind."""

    def __init__(self, folder: Path, processes: int, devices: int, *task: str):
        environment = os.environ | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]),
        }
        script, address = str(TESTS / "parallel" / "one_process.py"), free_address()
        self.files = [folder / f"{number}.txt" for number in range(processes)]
        self.running = []
        for number, file in enumerate(self.files):
            command = [sys.executable, script, address, str(processes), str(number), *task]
            with file.open("w") as out:
                self.running.append(
                    subprocess.Popen(command, env=environment, stdout=out, stderr=out)
                )

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *_) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def end(self, number: int, seconds: float) -> tuple[int, str]:
        """Exit code of a process and what it printed."""
        code = self.running[number].wait(timeout=seconds)
        return code, self.files[number].read_text()


@pytest.mark.parametrize(
    ("processes", "devices", "ways"),
    [
        (2, 4, ["flat:rounds", "nodes:alltoall"]),
        (4, 2, ["nodes:rounds"]),
        pytest.param(4, 2, ["flat:rounds", "flat:allgather"], marks=pytest.mark.thorough),
        pytest.param(2, 4, ["nodes:rounds", "nodes:allgather"], marks=pytest.mark.thorough),
    ],
)
def test_equal_to_the_dense_layer(tmp_path, processes, devices, ways):
    with Started(tmp_path, processes, devices, "equal", *ways) as started:
        for number in range(processes):
            code, said = started.end(number, 240)
            assert code == 0, said[-4000:]
            assert said.count("equal: ") == len(ways)


LIMIT = 8
LATE = f"moe_ref: process 0 of 2: a sum over all ranks took longer than {LIMIT}.0 s. Another"


def test_a_process_that_does_not_come(tmp_path):
    with Started(tmp_path, 2, 1, "lonely", "sleeps", str(LIMIT)) as started:
        code, said = started.end(0, 90)
    assert "together" in said
    assert code == 124
    assert LATE in said


def test_a_process_that_dies(tmp_path):
    with Started(tmp_path, 2, 1, "lonely", "dies", str(LIMIT)) as started:
        assert started.end(1, 90)[0] == 9
        began = time.monotonic()
        code, said = started.end(0, 90)
    # The closed connection is noticed at once; the limit ends JAX's wait for all at exit.
    assert time.monotonic() - began < 2 * LIMIT
    assert "together" in said
    assert "Gloo all-reduce failed" in said
    assert code == 124
    assert LATE in said
