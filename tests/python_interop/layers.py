"""Block-scale fp8 layers in numpy, written independently of the C++ library."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

BLOCK = 128
E4M3 = ml_dtypes.float8_e4m3fn
E8M0 = ml_dtypes.float8_e8m0fnu
BF16 = ml_dtypes.bfloat16


def blocks(n):
    return -(-n // BLOCK)


def random_codes(rng, cols, depth):
    """Every code but the two NaN, as bytes."""
    codes = rng.integers(0, 254, size=(cols, depth), dtype=np.uint8)
    return np.where(codes >= 0x7F, codes + 1, codes).astype(np.uint8)  # 0x7F and 0xFF left out


def random_layer(rng, name, cols, depth, scale_dtype="F32", bias=False):
    """Tensors of one linear in DeepSeek's names, for save_file."""
    shape = (blocks(cols), blocks(depth))
    tensors = {f"{name}.weight": random_codes(rng, cols, depth).view(E4M3)}
    if scale_dtype == "F8_E8M0":
        exponents = rng.integers(0, 255, size=shape, dtype=np.uint8)  # 255 is NaN
        tensors[f"{name}.scale"] = exponents.view(E8M0)
    else:
        scales = rng.uniform(1e-4, 2.0, size=shape).astype(np.float32)
        tensors[f"{name}.weight_scale_inv"] = scales if scale_dtype == "F32" else scales.astype(BF16)
    if bias:
        tensors[f"{name}.bias"] = rng.standard_normal(cols).astype(BF16)
    return tensors


def scales_of(tensors, name):
    stored = tensors.get(f"{name}.weight_scale_inv", tensors.get(f"{name}.scale"))
    return stored.astype(np.float32)


def save_sharded(directory, shards):
    """Writes shard files and their index. `shards` is a list of tensor dictionaries."""
    weight_map = {}
    for number, tensors in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in tensors})
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def quantize(weight, ue8m0):
    """Codes (bytes) and fp32 scales of a [cols, depth] fp32 matrix."""
    cols, depth = weight.shape
    codes = np.empty((cols, depth), np.uint8)
    scales = np.empty((blocks(cols), blocks(depth)), np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = weight[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK]
            amax = np.abs(block).max()
            scale = amax / np.float32(448) if amax > 0 else np.float32(1)
            if ue8m0:
                mantissa, exponent = np.frexp(scale)  # scale = mantissa * 2^exponent, 0.5 <= m < 1
                scale = np.ldexp(np.float32(1), exponent - (mantissa == 0.5))
            scales[i, j] = scale
            real = np.clip(block / scale, -448, 448)
            codes[i * BLOCK:(i + 1) * BLOCK, j * BLOCK:(j + 1) * BLOCK] = real.astype(E4M3).view(np.uint8)
    return codes, scales
