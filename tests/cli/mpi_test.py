"""Ranks as processes of mpirun, which the program finds out by itself."""

import os
import signal
import subprocess
import time

import numpy
import pytest
from program import BINARY, SMALL, children_of, make_checkpoint, ok, rowband, spoil_slice

MPIEXEC = os.environ.get("ROWBAND_MPIEXEC")
pytestmark = pytest.mark.skipif(not MPIEXEC, reason="this build has no MPI")

# More ranks than cores, and root in containers, are fine here.
ENVIRONMENT = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


def under_mpi(ranks, *arguments, **options):
    return rowband(*arguments, env=ENVIRONMENT, launcher=(MPIEXEC, "-n", str(ranks)), **options)


def test_processes_and_threads_give_the_same_bits(tmp_path):
    for wire in ["bf16", "fp8"]:
        arguments = ["run", "--rows", 100, *SMALL, "--wire", wire, "--verify", "--output"]
        ok(*arguments, tmp_path / "threads.npy", "--ranks", 3)
        result = under_mpi(3, *arguments, tmp_path / "mpi.npy", "--ranks", 3)
        assert result.code == 0, result
        assert result.out.count("W=3 ranks as processes of mpirun") == 1  # one process prints
        assert numpy.array_equal(numpy.load(tmp_path / "threads.npy"),
                                 numpy.load(tmp_path / "mpi.npy"))


def test_a_trace_holds_all_processes(tmp_path):
    result = under_mpi(2, "run", "--rows", 100, *SMALL, "--trace", tmp_path / "t.svg")
    assert result.code == 0, result
    picture = (tmp_path / "t.svg").read_text()
    assert "rank 0" in picture and "rank 1" in picture


def test_other_ranks_than_processes_are_refused_once():
    result = under_mpi(2, "run", *SMALL, "--ranks", 3)
    assert result.code == 2, result
    assert result.err.count("rowband: error") == 1
    assert "--ranks 3" in result.err and "2 processes" in result.err


def test_bad_usage_is_said_once():
    result = under_mpi(3, "run", "--wire", "FP8")
    assert result.code == 2 and result.err.count("rowband: error") == 1, result


def test_bench_under_mpi():
    result = under_mpi(2, "bench", "--rows", 40, *SMALL, "--arms", "bf16-direct", "--repeats", 5)
    assert result.code == 0, result
    assert result.out.count("| base ") == 1


def test_self_test_under_mpi():
    result = under_mpi(2, "self-test", "--rows", 100, "--cols", 256)
    assert result.code == 0 and result.out.count("ok ") == 4, result


def test_D08_the_first_error_of_any_process_ends_all_and_is_shown_once(tmp_path):
    path = make_checkpoint(tmp_path / "m.safetensors", tensor="m")
    spoil_slice(path, "m.weight", row=3, column=130)  # in the slice of rank 1 of 4
    result = under_mpi(4, "run", "--checkpoint", path, timeout=60)
    assert result.code == 2, result
    assert result.err.count("rowband: ") == 1, result
    assert "rank 1: reading the weight" in result.err and "[3, 130]" in result.err


def test_D08_a_killed_process_ends_the_job():
    job = subprocess.Popen(
        [MPIEXEC, "-n", "3", BINARY, "run", "--rows", "100", *SMALL, "--repeat", "1000000"],
        env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert job.stdout is not None
        assert job.stdout.readline().startswith(b"layer")  # the ranks are at work
        victim = children_of(job.pid)[1]
        os.kill(victim, signal.SIGKILL)
        begin = time.monotonic()
        job.communicate(timeout=60)
        assert job.returncode != 0
        assert time.monotonic() - begin < 30
    finally:
        job.kill()
        job.communicate()
