"""`rowband bench` and `rowband demo`: files, tables and exit codes; the figures mean nothing here."""

import json
import xml.etree.ElementTree

import pytest
from program import ok, refused, rowband

TINY = ["--rows", "40,70", "--cols", "256", "--depth", "128", "--repeats", "5"]


def test_the_sweep_in_all_forms(tmp_path):
    files = {n: tmp_path / f"b.{n}" for n in ("json", "md", "svg")}
    text = ok("bench", *TINY, "--ranks", "1,2", "--json", files["json"], "--markdown", files["md"],
              "--plot", files["svg"])
    assert text == files["md"].read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    assert [cell.strip() for cell in rows[0][:6]] == ["M", "N", "K", "W", "arm", "ms"]
    assert len(rows) == 2 + 2 * 2 * 4
    assert xml.etree.ElementTree.parse(files["svg"]).getroot().tag.endswith("svg")

    report = json.loads(files["json"].read_text())
    assert [(r["rows"], r["ranks"]) for r in report["results"]] == [(40, 1), (70, 1), (40, 2),
                                                                     (70, 2)]
    for result in report["results"]:
        assert [a["arm"] for a in result["arms"]] == ["base", "bf16-direct", "bf16-copy_engine",
                                                      "fp8-direct"]
        for arm in result["arms"]:
            assert arm["ok"] and arm["same_bits_on_all_ranks"]
            assert arm["relative_l2"] < (3e-2 if arm.get("wire") == "fp8" else 3e-3)
            assert len(arm["ms"]["samples"]) == 5
            assert arm["ms"]["min"] <= arm["ms"]["median"] <= arm["ms"]["max"]
            assert len(arm["skew_ms"]["samples"]) == 5
        base = result["arms"][0]
        assert base["ratio_to_base"] == 1.0
        assert set(base["legs"]) == {"gemm_ms", "all_reduce_ms"}


def test_arms_are_chosen_and_base_is_always_there():
    text = ok("bench", *TINY, "--arms", "fp8-copy_engine")
    assert "| base " in text and "| fp8-copy_engine |" in text and "bf16-direct" not in text


def test_no_progress_bar_unless_there_is_a_terminal():
    assert rowband("bench", *TINY, "--arms", "bf16-direct").err == ""


def test_the_quantizer_alone(tmp_path):
    text = ok("bench", "--quantizer", "--rows", "64", "--depth", "256", "--json",
              tmp_path / "q.json")
    assert "GB/s" in text and "wrong" not in text
    assert json.loads((tmp_path / "q.json").read_text())["results"][0]["ok"]


def test_the_gemm_alone_against_openblas_or_why_not(tmp_path):
    result = rowband("bench", "--gemm", "--rows", "64", "--cols", "256", "--depth", "256", "--json",
                     tmp_path / "g.json")
    if result.code == 1 and "OpenBLAS" in result.err:
        pytest.skip("this build has no OpenBLAS")
    assert result.code == 0, result
    assert "kernels" in result.out and "GFLOP/s" in result.out and "wrong" not in result.out
    assert json.loads((tmp_path / "g.json").read_text())["results"][0]["ok"]


def test_bad_shapes_and_mixed_modes_are_refused():
    assert "K=100" in refused("bench", "--depth", "100")
    assert "N=12" in refused("bench", "--cols", "12")
    refused("bench", "--gemm", "--quantizer")
    refused("bench", "--plot", "x.png")
    assert "--sets 5" in refused("bench", "--engine", "cuda", "--sets", 5)
    assert "--threads 2" in refused("bench", "--engine", "cuda", "--threads", 2)


def test_the_demo_writes_its_pictures_and_one_table(tmp_path):
    arguments = ["demo", "--rows", "200", "--cols", "256", "--depth", "128", "--repeats", "3"]
    text = ok(*arguments, "--output-dir", tmp_path / "new")
    for label in ["base ", "fused, bf16 wire", "fused, fp8 wire"]:
        (line,) = [l for l in text.splitlines() if l.startswith(label)]
        assert line.endswith("yes")
    for name in ["demo.safetensors", "fused-bf16.svg", "fused-bf16.perfetto.json", "fused-fp8.svg"]:
        assert (tmp_path / "new" / name).exists()
        assert name in text or name == "demo.safetensors" and "demo.safetensors" in text
    events = json.loads((tmp_path / "new" / "fused-bf16.perfetto.json").read_text())
    assert "scatter" in str(events) and "gather" in str(events)

    checkpoint = tmp_path / "new" / "demo.safetensors"  # now as anybody's checkpoint
    text = ok("demo", "--checkpoint", checkpoint, "--rows", "64", "--repeats", "1", "--output-dir",
              tmp_path / "again")
    assert "o_proj.weight" in text and not (tmp_path / "again" / "demo.safetensors").exists()
