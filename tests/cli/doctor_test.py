"""`rowband doctor`."""

from program import ok, ok_json, rowband


def test_the_report_holds_every_section_in_both_forms():
    report = ok_json("doctor")
    assert list(report) == ["build", "machine", "engine", "gpus", "limits", "libraries", "environment"]
    text = ok("doctor")
    for section, entries in report.items():
        assert f"{section}\n" in text
        for key, value in entries.items():
            assert key in text
            assert isinstance(value, str) and value, key


def test_what_a_bug_report_needs_is_there():
    report = ok_json("doctor")
    assert report["build"]["rowband"] and report["build"]["compiler"]
    assert report["engine"]["GEMM kernel chosen"] in report["engine"]["GEMM kernels, best first"]
    assert report["machine"]["cores allowed"] != "unknown"
    assert report["libraries"]["fmt"].count(".") == 2


def test_variables_in_force_and_one_that_is_refused():
    report = ok_json("doctor", env={"ROWBAND_FUSE": "1", "ROWBAND_FUZE": "1"})["environment"]
    assert report["ROWBAND_FUSE"] == "'1'"
    assert "no variable of this library" in report["ROWBAND_FUZE"]
    assert report["ROWBAND_* in force"] == "valid"
    report = ok_json("doctor", env={"ROWBAND_CHUNKS": "many"})["environment"]
    assert report["ROWBAND_* in force"].startswith("REFUSED") and "'many'" in str(report)


def test_it_works_with_next_to_no_environment():
    result = rowband("doctor", env={"PATH": "", "HOME": "/nonexistent"})
    assert result.code == 0, result


def test_gpus_are_described_or_one_line_says_why_there_are_none():
    gpus = ok_json("doctor", "--engine", "host")["gpus"]
    engine = ok_json("doctor", "--engine", "host")["engine"]["engine when none is asked for"]
    if "GPU 0" not in gpus:
        assert list(gpus) == ["GPUs"]
        assert engine == "host"
        assert "none: " in gpus["GPUs"] or "this build has no cuda engine" in gpus["GPUs"]
        return
    for key in ["driver", "CUDA runtime", "NCCL", "cuBLASLt", "transport direct, wire bf16"]:
        assert gpus[key], key
    assert "GB/s" not in str(gpus)  # measured for the engine cuda alone
