"""Matrices that numpy, ml_dtypes and the safetensors package write, read in C++ and written back."""

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

BF16 = ml_dtypes.bfloat16


def values(shape):
    """fp32 numbers that bf16 must round, ties and special values among them."""
    rng = np.random.default_rng(5)
    out = (rng.standard_normal(shape) * np.exp2(rng.integers(-120, 120, size=shape)))
    out = out.astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.00390625, 1.01171875, 1e-40],
                       np.float32)
    out.reshape(-1)[:special.size] = special
    return out


def assert_same_bits(got, wanted):
    """bf16 arrays, any NaN being as good as another."""
    assert got.shape == wanted.shape
    nan = np.isnan(wanted.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), nan)
    np.testing.assert_array_equal(got.view(np.uint16)[~nan], wanted.view(np.uint16)[~nan])


def read_written(path):
    """What C++ wrote, as bf16."""
    if path.suffix == ".npy":
        array = np.load(path)
        assert array.dtype == np.float32
        bf16 = array.astype(BF16)
        np.testing.assert_array_equal(bf16.astype(np.float32), array)  # each a bf16 exactly
        return bf16
    tensor = dict(safetensors.deserialize(path.read_bytes()))["y"]
    assert tensor["dtype"] == "BF16"
    return np.frombuffer(tensor["data"], BF16).reshape(tensor["shape"])


@pytest.mark.parametrize("out", ["out.npy", "out.safetensors"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_npy_round_trip(tmp_path, dump_weight, dtype, order, out):
    array = values((7, 24)).astype(dtype)
    np.save(tmp_path / "in.npy", np.asarray(array, order=order))
    dump_weight.run("matrix", tmp_path / "in.npy", tmp_path / out)
    assert_same_bits(read_written(tmp_path / out), array.astype(BF16))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(24,), (3, 4, 24), (2, 1, 3, 8), (0, 16)])
def test_npy_shapes_fold_into_rows(tmp_path, dump_weight, shape, order):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.save(tmp_path / "in.npy", np.asarray(array, order=order))
    dump_weight.run("matrix", tmp_path / "in.npy", tmp_path / "out.npy")
    assert_same_bits(read_written(tmp_path / "out.npy"),
                     array.reshape(int(np.prod(shape[:-1])), shape[-1]).astype(BF16))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, dump_weight, version):
    array = values((2, 8))
    with open(tmp_path / "in.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    dump_weight.run("matrix", tmp_path / "in.npy", tmp_path / "out.npy")
    assert_same_bits(read_written(tmp_path / "out.npy"), array.astype(BF16))


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_safetensors_matrix(tmp_path, dump_weight, dtype):
    array = values((5, 16)).astype(dtype)
    save_file({"x": array, "other": np.zeros(3, np.int64)}, tmp_path / "in.safetensors")
    dump_weight.run("matrix", tmp_path / "in.safetensors", tmp_path / "out.safetensors", "--tensor",
                    "x")
    assert_same_bits(read_written(tmp_path / "out.safetensors"), array.astype(BF16))


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2", "<i4"])
def test_other_npy_dtypes_are_refused_by_name(tmp_path, dump_weight, dtype):
    np.save(tmp_path / "in.npy", np.zeros((2, 2), dtype))
    done = dump_weight.attempt("matrix", tmp_path / "in.npy", tmp_path / "out.npy")
    assert done.returncode == 1
    assert dtype in done.stderr and "[2, 2]" in done.stderr and "in.npy" in done.stderr
    assert not (tmp_path / "out.npy").exists()
