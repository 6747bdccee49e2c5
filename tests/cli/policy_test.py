"""The policy: what `plan` says is what `run --path auto` does, and the variables that steer it."""

import re

import pytest
from program import SMALL, ok, ok_json, refused, rowband

ON = {"ROWBAND_FUSE": "1"}


def planned(rows, *flags, env):
    verdict = ok_json("plan", "--rows", rows, *SMALL, *flags, env=env)["policy"]["verdict"]
    return verdict["decision"], verdict["reason"]


def done(rows, *flags, env):
    """The decision by the counters of a run, and the reason that it prints."""
    text = ok("run", "--rows", rows, *SMALL, *flags, "--path", "auto", env=env)
    fused = re.search(r"^calls +(\d+) fused", text, re.M)
    assert fused, text
    declined = re.search(r"(\d+) declined \((\w+)\)", text)
    assert int(fused[1]) + (int(declined[1]) if declined else 0) == 1
    reason = re.search(r"^reason +(.*)$", text, re.M)
    return declined[2] if declined else "fuse", reason[1] if reason else ""


@pytest.mark.parametrize("wire", ["bf16", "fp8"])
@pytest.mark.parametrize("flags, rows", [
    ((), [511, 512, 513]),                       # min_rows is 512 by default
    (("--min-rows", 100), [99, 100, 101]),
    (("--max-rows", 128, "--min-rows", 0), [127, 128, 129]),
    (("--min-fill", 0.9, "--min-rows", 0), [32, 33, 63, 64, 65]),
])
def test_C05_plan_and_run_decide_alike_around_each_threshold(flags, rows, wire):
    decisions = set()
    for m in rows:
        flags_of_both = (*flags, "--wire", wire, "--ranks", 2)
        decision, reason = planned(m, *flags_of_both, env=ON)
        assert done(m, *flags_of_both, env=ON) == (decision, reason)
        if decision in ("too_few_rows", "too_many_rows"):
            assert f"M={m} rows" in reason  # a threshold in rows is compared with rows
        decisions.add(decision)
    assert len(decisions) == 2, "both sides of the threshold were seen"


@pytest.mark.parametrize("value", ["1", "true", "True", "on", "yes", " 1 "])
def test_C07_these_switch_a_flag_on(value):
    assert planned(512, env={"ROWBAND_FUSE": value})[0] == "fuse"


@pytest.mark.parametrize("value", ["0", "False", "off", "no", ""])
def test_C07_these_switch_it_off(value):
    assert planned(64, env={"ROWBAND_FUSE": value})[0] == "disabled"


@pytest.mark.parametrize("value", ["2", "abc", "yes please"])
@pytest.mark.parametrize("name", ["ROWBAND_FUSE", "ROWBAND_FP8_GATHER", "ROWBAND_DEBUG_CHECK"])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_C07_anything_else_is_an_error_that_names_variable_and_value(name, value, command):
    text = refused(command, "--rows", 64, *SMALL, env={name: value})
    assert name in text and f"'{value}'" in text


def test_C01_so_are_the_other_variables():
    for name, value in {"ROWBAND_TRANSPORT": "sla", "ROWBAND_GATHER_SCALE": "rows",
                        "ROWBAND_CHUNKS": "four", "ROWBAND_MIN_FILL": "2"}.items():
        assert f"'{value}'" in refused("run", "--rows", 64, *SMALL, env={name: value})


def test_variables_hold_where_no_option_is_given():
    arguments = ["plan", "--rows", 64, *SMALL, "--ranks", 2]
    env = {"ROWBAND_FP8_GATHER": "1", "ROWBAND_TRANSPORT": "copy_engine", "ROWBAND_MAX_ROWS": "500"}
    p = ok_json(*arguments, env=env)
    assert (p["wire"], p["transport"], p["max_rows"]) == ("fp8", "copy_engine", 500)
    p = ok_json(*arguments, "--wire", "bf16", "--transport", "direct", "--max-rows", 64, env=env)
    assert (p["wire"], p["transport"], p["max_rows"]) == ("bf16", "direct", 64)


def test_D05_run_prints_what_was_served_and_what_was_declined_and_why():
    text = ok("run", "--rows", 32, *SMALL, "--path", "auto", "--repeat", 100, env=ON)
    assert "calls    0 fused, 100 declined (too_few_rows)" in text
    assert "reason   M=32 rows are fewer than min_rows=512 rows" in text
    text = ok("run", "--rows", 64, *SMALL, "--path", "auto", "--repeat", 100)
    assert "calls    0 fused, 100 declined (disabled)" in text
    text = ok("run", "--rows", 512, *SMALL, "--path", "auto", "--repeat", 100, env=ON)
    assert "calls    100 fused\n" in text and "declined" not in text


def test_D05_each_reason_is_logged_once():
    log = rowband("run", "--rows", 32, *SMALL, "--path", "auto", "--repeat", 100,
                  env={**ON, "ROWBAND_LOG": "info"}).err
    assert log.count("declined") == 1 and "min_rows=512" in log


def test_the_fused_path_is_never_swapped_for_another_one_silently():
    text = refused("run", "--rows", 65, *SMALL, "--max-rows", 64)
    assert "--path fused" in text and "M=65" in text and "64" in text
