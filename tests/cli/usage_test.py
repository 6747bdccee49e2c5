"""Usage: help, exit codes, and settings that are refused by name before anything is allocated."""

import pytest
from program import SMALL, ok, refused, rowband

SUBCOMMANDS = ["run", "bench", "demo", "plan", "self-test", "make-checkpoint", "quantize", "doctor"]


def test_help_lists_every_subcommand():
    text = ok("--help")
    for name in SUBCOMMANDS:
        assert f"\n  {name} " in text


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help(name):
    assert "Usage: rowband " + name in ok(name, "--help")


def test_version():
    assert ok("--version").startswith("rowband ")


@pytest.mark.parametrize("arguments", [[], ["no-such"], ["run", "--no-such"], ["run", "--rows"],
                                       ["run", "--rows", "many"], ["plan", "--rows", "8"]])
def test_bad_usage_exits_2(arguments):
    refused(*arguments)


@pytest.mark.parametrize("arguments, legal", [
    (["run", "--wire", "FP8"], ["'FP8'", "'bf16'", "'fp8'"]),
    (["run", "--wire", "fp8 "], ["'fp8 '", "'bf16'", "'fp8'"]),
    (["run", "--transport", "sla"], ["'sla'", "'copy_engine'", "'direct'"]),
    (["run", "--gather-scale", "Row"], ["'Row'", "'row'", "'block'"]),
    (["run", "--path", "fuse"], ["fuse", "fused", "base", "auto"]),
    (["run", "--activation-scales", "e8m0"], ["'e8m0'", "'fp32'", "'ue8m0'"]),
    (["run", "--gemm-kernel", "avx9"], ["'avx9'", "SCALAR"]),
    (["run", "--engine", "gpu"], ["'gpu'", "'host'"]),
    (["bench", "--arms", "fp8"], ["'fp8'", "'bf16-direct'", "'fp8-copy_engine'"]),
    (["--log-level", "loud", "run"], ["'loud'", "'info'", "'off'"]),
    (["make-checkpoint", "--output", "x.safetensors", "--cols", "8", "--depth", "128",
      "--scale-format", "FP32"], ["'FP32'", "'fp32'", "'ue8m0'"]),
])
def test_C01_only_exact_names_are_taken_and_the_legal_ones_are_listed(arguments, legal):
    text = refused(*arguments)
    for name in legal:
        assert name in text


# Operands of this shape would take terabytes: whoever allocates first cannot answer.
HUGE = ["--rows", str(1 << 24), "--cols", str(1 << 24), "--depth", str(1 << 24)]


@pytest.mark.parametrize("setting, words", [
    (["--chunks", "0"], "chunks=0 is not in 1..64"),
    (["--chunks", "65"], "chunks=65 is not in 1..64"),
    (["--slots", "0"], "slots=0 is not in 1..8"),
    (["--slots", "9"], "slots=9 is not in 1..8"),
    (["--max-rows", "0"], "max_rows=0 must be at least 1"),
    (["--ranks", "65"], "--ranks 65: must be from 1 to 64"),
    (["--deadline", "0"], "deadline 0 s"),
    (["--deadline", "nan"], "deadline nan s"),
    (["--trace", "picture.png"], ".svg"),
    (["--output", "result.txt"], ".npy or .safetensors"),
])
def test_C02_bad_settings_are_found_before_anything_is_allocated(setting, words):
    assert words in refused("run", *HUGE, *setting, timeout=20)


@pytest.mark.parametrize("shape, words", [
    (["--cols", "250"], "N=250"),
    (["--cols", "0"], "--cols 0"),
    (["--depth", "100"], "K = 200"),
    (["--depth", "-128"], "--depth -128"),
    (["--rows", "-1"], "--rows -1"),
])
def test_C02_bad_shapes_too(shape, words):
    assert words in refused("run", *shape, timeout=20)


def test_a_layer_that_no_machine_holds_is_an_error_and_no_crash():
    result = rowband("run", *HUGE, "--path", "base")
    assert result.code in (1, 2), result
    assert "error" in result.err


def test_self_test_says_what_moved():
    lines = ok("self-test", "--ranks", "3", "--rows", "300", "--cols", "256").splitlines()
    assert len(lines) == 4
    assert all(line.startswith("ok ") and "on 3 ranks" in line for line in lines)


def test_self_test_of_one_rank():
    assert ok("self-test", "--ranks", "1", "--cols", "256").count("ok ") == 4


def test_the_log_level_is_taken_from_the_environment():
    arguments = ["run", "--rows", "8", *SMALL, "--path", "auto"]
    assert "declined" in rowband(*arguments, env={"ROWBAND_LOG": "info"}).err
    assert rowband(*arguments).err == ""
    assert "'noisy'" in refused(*arguments, env={"ROWBAND_LOG": "noisy"})
