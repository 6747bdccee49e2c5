"""Ranks as processes: those that the program starts, and those that torchrun would."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import numpy
from program import (
    BINARY,
    SMALL,
    children_of,
    make_checkpoint,
    ok,
    refused,
    rowband,
    spoil_slice,
)

OWN = ["--engine", "host", "--ranks-as", "processes"]


def as_torchrun_does(ranks, *arguments, tell=None, without=()):
    """Runs a process per rank, with the variables that torchrun sets; [(code, out, err)] by rank."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    jobs = []
    for rank in range(ranks):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROWBAND_")}
        environment.update({
            "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **(tell or {})})
        for name in without:
            del environment[name]
        jobs.append(subprocess.Popen(
            [BINARY, *map(str, arguments)], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True))
    return [(*job.communicate(timeout=60), job.returncode) for job in jobs]


def test_processes_and_threads_give_the_same_bits(tmp_path):
    arguments = ["run", "--rows", 100, *SMALL, "--ranks", 3, "--verify", "--output"]
    ok(*arguments, tmp_path / "threads.npy", "--engine", "host")
    out = ok(*arguments, tmp_path / "processes.npy", *OWN)
    assert out.count("W=3 ranks as processes") == 1  # one process prints
    threads, processes = (numpy.load(tmp_path / f"{kind}.npy") for kind in ["threads", "processes"])
    assert numpy.array_equal(threads, processes)


def test_the_processes_of_torchrun_are_the_ranks(tmp_path):
    ok("run", "--rows", 100, *SMALL, "--ranks", 3, "--engine", "host", "--output",
       tmp_path / "threads.npy")
    results = as_torchrun_does(3, "run", "--rows", 100, *SMALL, "--engine", "host", "--verify",
                               "--output", tmp_path / "torchrun.npy")
    assert [code for _, _, code in results] == [0, 0, 0], results
    assert "W=3 ranks as processes" in results[0][0]
    assert results[1][0] == results[2][0] == ""
    assert numpy.array_equal(numpy.load(tmp_path / "threads.npy"),
                             numpy.load(tmp_path / "torchrun.npy"))


def test_the_port_can_be_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    results = as_torchrun_does(2, "self-test", "--rows", 64, "--engine", "host",
                               tell={"MASTER_PORT": "1", "ROWBAND_MASTER_PORT": str(port)})
    assert [code for _, _, code in results] == [0, 0], results


def test_what_torchrun_did_not_tell_is_named():
    for variable in ["MASTER_ADDR", "MASTER_PORT"]:
        for _, err, code in as_torchrun_does(1, "self-test", "--engine", "host",
                                             without=[variable]):
            assert code == 2 and f"{variable} is not set" in err, err
    for variable, value in [("MASTER_PORT", "70000"), ("WORLD_SIZE", "none"), ("RANK", "7")]:
        for _, err, code in as_torchrun_does(1, "self-test", "--engine", "host",
                                             tell={variable: value}):
            assert code == 2 and f"{variable}='{value}'" in err, err


def test_other_ranks_than_processes_are_refused():
    results = as_torchrun_does(2, "run", *SMALL, "--engine", "host", "--ranks", 3)
    assert [code for _, _, code in results] == [2, 2]
    assert "--ranks 3: torchrun started 2 processes" in results[0][1]


def test_C01_a_wrong_kind_of_rank_is_refused():
    assert "'threads', 'processes'" in refused("run", *SMALL, "--ranks-as", "proc")
    assert "one W" in refused("bench", "--ranks", "1,2", "--rows", 40, *SMALL, *OWN)


def test_bench_and_self_test_on_own_processes():
    out = ok("bench", "--ranks", 2, "--rows", 40, *SMALL, "--arms", "bf16-direct", "--repeats", 5,
             *OWN)
    assert out.count("| base ") == 1
    assert ok("self-test", "--ranks", 2, "--rows", 100, "--cols", 256, *OWN).count("ok ") == 4


def test_D08_the_first_error_of_any_rank_ends_all_and_is_shown_once(tmp_path):
    path = make_checkpoint(tmp_path / "m.safetensors", tensor="m")
    spoil_slice(path, "m.weight", row=3, column=130)  # in the slice of rank 1 of 4
    result = rowband("run", "--checkpoint", path, "--ranks", 4, *OWN, timeout=60)
    assert result.code == 2, result
    assert result.err.count("rowband: ") == 1, result
    assert "rank 1: reading the weight" in result.err and "[3, 130]" in result.err


class LongJob:
    """Ranks at work until they are stopped, and the processes that they are."""

    def __enter__(self):
        self.job = subprocess.Popen(
            [BINARY, "run", "--rows", "100", *SMALL, "--ranks", "3", "--repeat", "1000000", *OWN],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.job.stdout is not None
        assert self.job.stdout.readline().startswith("layer")
        self.ranks = children_of(self.job.pid)
        assert len(self.ranks) == 3
        return self

    def __exit__(self, *_):
        self.job.kill()
        self.job.communicate()

    def end(self):
        """What it said on stderr; checks that it and its ranks end soon."""
        begin = time.monotonic()
        _, err = self.job.communicate(timeout=60)
        while any(Path(f"/proc/{pid}").exists() for pid in self.ranks):
            assert time.monotonic() - begin < 30
            time.sleep(0.05)
        assert time.monotonic() - begin < 30
        return err


def test_D06_D08_a_killed_rank_ends_all_and_is_named():
    with LongJob() as long:
        os.kill(long.ranks[1], signal.SIGKILL)
        err = long.end()
        assert long.job.returncode == 1
        assert "rank 1 was ended by signal 9" in err, err
        assert err.count("rank 1") >= 2, err  # a peer says so, too


def test_D08_a_rank_that_hangs_is_killed_when_another_has_failed():
    with LongJob() as long:
        os.kill(long.ranks[2], signal.SIGSTOP)
        os.kill(long.ranks[1], signal.SIGKILL)
        long.end()
        assert long.job.returncode == 1


def test_signals_are_passed_on():
    for one in [signal.SIGINT, signal.SIGTERM]:
        with LongJob() as long:
            long.job.send_signal(one)
            long.end()
            assert long.job.returncode == 1


def test_ranks_end_with_the_process_that_started_them():
    with LongJob() as long:
        long.job.kill()
        long.end()


def test_P06_any_choice_of_visible_gpus_leaves_the_host_engine():
    for value in ["", "-1", "GPU-0f0f0f0f", "MIG-GPU-0f0f0f0f/1/0"]:
        for arguments in [("self-test", "--rows", 64, "--engine", "host"), ("doctor",), ("--help",)]:
            ok(*arguments, env={"CUDA_VISIBLE_DEVICES": value})
