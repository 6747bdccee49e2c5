"""`rowband doctor`."""

from program import ok, ok_json, rowband


def test_the_report_holds_every_section_in_both_forms():
    report = ok_json("doctor")
    assert list(report) == ["build", "machine", "engine", "limits", "libraries", "environment"]
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
