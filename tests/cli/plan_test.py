"""`rowband plan`, and the shapes that no layer can have."""

import pytest
from program import ok, ok_json, refused, rowband


def plan(*arguments, **options):
    return ok_json("plan", *arguments, **options)


def test_the_issue_s_example():
    text = ok("plan", "--rows", 16384, "--cols", 7168, "--depth", 2048, "--ranks", 8)
    for words in ["M=16384 rows", "W=8 ranks", "bands", "tile order", "bytes that leave each rank",
                  "symmetric window"]:
        assert words in text


def test_bands_cover_every_row_once_and_chunks_cover_their_band():
    p = plan("--rows", 1000, "--cols", 512, "--depth", 128, "--ranks", 3, "--chunks", 4)
    row = 0
    for rank in p["per_rank"]:
        assert rank["band"]["begin"] == row
        for chunk in rank["chunks"]:
            assert chunk["begin"] == row
            row = chunk["end"]
        assert rank["band"]["end"] == row
    assert row == 1000


def test_every_rank_computes_its_own_band_last():
    for rank in plan("--rows", 500, "--cols", 256, "--depth", 128, "--ranks", 5)["per_rank"]:
        assert rank["band_order"][-1] == rank["rank"]
        assert sorted(rank["band_order"]) == list(range(5))
    p = plan("--rows", 500, "--cols", 256, "--depth", 128, "--ranks", 5, "--tiles")
    for rank in p["per_rank"]:
        for_peers = sum(t["band"] != rank["rank"] for t in rank["tiles"])
        assert rank["tiles_ahead_of_own"] == for_peers
        assert all(t["band"] != rank["rank"] for t in rank["tiles"][:for_peers])


def test_tiles_are_listed_and_cover_the_output():
    p = plan("--rows", 300, "--cols", 520, "--depth", 128, "--ranks", 2, "--tiles")
    for rank in p["per_rank"]:
        assert len(rank["tiles"]) == p["tiles_per_rank"]
        area = sum((t["rows"]["end"] - t["rows"]["begin"]) * (t["cols"]["end"] - t["cols"]["begin"])
                   for t in rank["tiles"])
        assert area == 300 * 520
    text = ok("plan", "--rows", 300, "--cols", 520, "--depth", 128, "--ranks", 2, "--tiles")
    assert text.count("\n") > 2 * p["tiles_per_rank"]


def test_bytes_on_the_legs():
    p = plan("--rows", 1024, "--cols", 256, "--depth", 128, "--ranks", 2)
    assert p["per_rank"][0]["scatter_bytes"] == 512 * 256 * 2
    assert p["per_rank"][0]["gather_bytes"] == 512 * 256 * 2
    p = plan("--rows", 1024, "--cols", 256, "--depth", 128, "--ranks", 2, "--wire", "fp8")
    assert p["per_rank"][0]["scatter_bytes"] == 512 * 256 * 2
    assert p["per_rank"][0]["gather_bytes"] == 512 * (256 + 2 * 4)  # a scale for 128 columns


def test_regions_add_up_to_the_window():
    for wire in ["bf16", "fp8"]:
        for transport in ["direct", "copy_engine"]:
            window = plan("--rows", 777, "--cols", 256, "--depth", 128, "--ranks", 3, "--wire", wire,
                          "--transport", transport)["window"]
            regions = window["regions"]
            assert sum(r["bytes"] for r in regions.values()) == window["bytes"]
            assert (regions["staging"]["bytes"] > 0) == (transport == "copy_engine")
            assert (regions["gather_codes"]["bytes"] > 0) == (wire == "fp8")
            assert regions["control"]["bytes"] > 0


def total_depth(depth, ranks):
    return ["plan", "--rows", "64", "--cols", "256", "--total-depth", depth, "--ranks", ranks]


def test_T01_a_slice_that_cuts_a_block_is_refused_with_the_legal_world_sizes():
    text = refused(*total_depth(18432, 32))
    assert "576" in text and "128" in text
    assert "1 2 3 4 6 8 9 12 16 18 24 36 48 72 144" in text


def test_T02_a_slice_of_64_columns_is_refused_early():
    text = refused(*total_depth(512, 8))
    assert "64" in text and "128" in text


@pytest.mark.parametrize("ranks", [16, 3, 5, 6, 7])
def test_T05_fewer_blocks_than_ranks_and_uneven_ones(ranks):
    text = refused(*total_depth(8 * 128, ranks))
    assert "8 blocks" in text and f"over {ranks} ranks" in text


def test_T06_a_layer_that_cannot_be_sharded_is_refused_not_replicated():
    text = refused(*total_depth(96 * 128, 64))
    assert "12288" in text and "64 ranks" in text
    text = refused("run", "--rows", 8, "--cols", 256, "--depth", "100", "--ranks", 64)
    assert "6400" in text and "64" in text


def test_W04_three_ranks_on_what_three_does_and_does_not_divide():
    assert "128 blocks" in refused(*total_depth(16384, 3))
    assert "K=6144 per rank" in ok(*total_depth(18432, 3))


def test_one_of_the_two_depths_is_needed():
    refused("plan", "--rows", 8, "--cols", 256)
    refused("plan", "--rows", 8, "--cols", 256, "--depth", 128, "--total-depth", 256)


def test_no_rows_and_fewer_rows_than_ranks():
    p = plan("--rows", 0, "--cols", 256, "--depth", 128, "--ranks", 4)
    assert all(rank["chunks"] == [] for rank in p["per_rank"])
    p = plan("--rows", 1, "--cols", 256, "--depth", 128, "--ranks", 4)
    assert [len(rank["chunks"]) for rank in p["per_rank"]] == [1, 0, 0, 0]


def test_beyond_the_capacity_there_is_no_plan_but_a_verdict():
    result = rowband("plan", "--rows", 65, "--cols", 256, "--depth", 128, "--max-rows", 64,
                     env={"ROWBAND_FUSE": "1"})
    assert result.code == 0
    assert "too_many_rows" in result.out and "\nbands\n" not in result.out


def test_the_cuda_engine_is_planned_without_a_gpu_or_refused_by_a_build_without_it():
    arguments = ["plan", "--rows", 16384, "--cols", 7168, "--depth", 2048, "--engine", "cuda"]
    result = rowband(*arguments)
    if result.code != 0:
        assert result.code == 1 and "this build has no cuda engine" in result.err, result
        return
    p = ok_json(*arguments)
    assert (p["engine"], p["tiles_at_once"]) == ("cuda", 66)  # 132 SMs in pairs
    assert ok_json(*arguments, "--sms", 114, "--device-ranks", 4)["tiles_at_once"] == 14
    assert p["window"]["bytes"] > 5 * 8192 * 7168 * 2
    # Of partials in 12 bits a value, and a 512th of 16 bits to tell how they are packed.
    assert p["packed_chunks"] == 2 and p["window"]["regions"]["packing_heads"]["bytes"] > 0
    values = 8192 * 7168
    assert p["per_rank"][0]["scatter_bytes"] == values * 3 // 2 + values * 2 // 512
    assert p["per_rank"][0]["gather_bytes"] == values * 2
    text = ok(*arguments)
    assert "2 output slots, partials packed\n" in text and "leave each rank, at least" in text
    deep = ok_json(*(8192 if value == 2048 else value for value in arguments))
    assert deep["packed_chunks"] == 0
    assert sum(rank["scatter_bytes"] for rank in deep["per_rank"]) == 2 * values * 2
    # On the fp8 wire of eight chunks the first five.
    fp8 = ok_json(*arguments, "--wire", "fp8")
    assert fp8["packed_chunks"] == 5
    assert "the partials of a band's first 5 chunks packed\n" in ok(*arguments, "--wire", "fp8")
    assert "device_ranks=5" in refused(*arguments, "--sms", 8, "--device-ranks", 5)
