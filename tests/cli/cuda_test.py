"""The program on the cuda engine. Skipped, with a message, where there is no Hopper GPU."""

import json

import numpy as np
import program
import pytest
from program import ok, ok_json, refused, rowband

program.HIDE_GPUS = False
HOPPER = ok_json("doctor", "--engine", "host")["engine"]["engine when none is asked for"] == "cuda"
pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU, there is none")

SHAPE = ["--rows", 700, "--cols", 512, "--depth", 384]


@pytest.fixture(name="checkpoint")
def made_checkpoint(tmp_path):
    path = tmp_path / "layer.safetensors"
    ok("make-checkpoint", "--output", path, "--tensor", "o_proj", "--cols", 512, "--depth", 768,
       "--bias")
    return path


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("path", ["fused", "base"])
def test_a_checkpoint_gives_what_the_host_engine_gives(checkpoint, tmp_path, ranks, path):
    results = {}
    for engine in ["host", "cuda"]:
        out = tmp_path / f"{engine}.npy"
        text = ok("run", "--engine", engine, "--checkpoint", checkpoint, "--rows", 700, "--ranks",
                  ranks, "--path", path, "--verify", "--output", out)
        assert f"{engine} engine" in text and "FAILED" not in text
        results[engine] = np.load(out).astype(np.float64)
    difference = np.linalg.norm(results["cuda"] - results["host"])
    assert difference <= 3e-3 * np.linalg.norm(results["host"])


@pytest.mark.parametrize("path", ["fused", "base"])
def test_a_traced_call_is_drawn(checkpoint, tmp_path, path):
    picture = tmp_path / "t.svg"
    ok("run", "--checkpoint", checkpoint, "--rows", 2048, "--path", path, "--trace", picture)
    assert picture.read_text().startswith("<")
    events = json.loads((tmp_path / "t.perfetto.json").read_text())["traceEvents"]
    assert any("all-reduce" in json.dumps(e) for e in events) == (path == "base")
    assert len(events) > 2


def test_the_other_gemm_kernel_of_the_base_path():
    text = ok("run", *SHAPE, "--path", "base", "--gemm-kernel", "cublaslt", "--verify")
    assert "GEMM kernel cublaslt" in text
    assert "'wgmma', 'cublaslt'" in refused("run", *SHAPE, "--gemm-kernel", "avx512_bf16")


def test_self_test_proves_what_is_served_and_says_what_is_not():
    lines = ok("self-test", "--ranks", 2).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("ok") and "transport direct" in lines[0]
    assert all(line.split()[0] in ("ok", "none") for line in lines)


def test_bench_checks_and_times_every_arm(tmp_path):
    file = tmp_path / "bench.json"
    ok("bench", "--rows", "300,1024", "--cols", 512, "--depth", 256, "--repeats", 3, "--json", file)
    results = json.loads(file.read_text())["results"]
    assert [r["rows"] for r in results] == [300, 1024]
    for result in results:
        assert [a["arm"] for a in result["arms"]][:3] == ["base", "base, own GEMM", "bf16-direct"]
        for arm in result["arms"]:
            assert arm["ok"], arm
            if "not_served" not in arm:
                assert arm["queued_us"]["median"] > 0 and arm["single_us"]["median"] > 0


def test_ranks_that_share_a_gpu_need_queues_of_their_own():
    gpus = [name for name in ok_json("doctor", "--engine", "host")["gpus"]
            if name.startswith("GPU ")]
    if len(gpus) >= 8:
        pytest.skip("8 ranks share no GPU here")
    result = rowband("run", *SHAPE, "--ranks", 8, "--ranks-as", "threads",
                     env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert result.code == 1
    assert "CUDA_DEVICE_MAX_CONNECTIONS=1" in result.err


def test_more_ranks_than_the_engine_joins_are_refused():
    assert "W=16: the cuda engine joins at most 8 ranks" in refused("run", *SHAPE, "--ranks", 16)
