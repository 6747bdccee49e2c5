#include "rowband/engines/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "rowband/base/fail.h"
#include "rowband/engines/cuda/driver.h"

namespace rowband::cuda {
namespace {

// Through the runtime, so that no program links libcuda and all start without a driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* const found = find_driver_function("cuTensorMapEncodeTiled", 12000);
    if (found == nullptr) {
      fail(ErrorCode::kUnavailable,
           "the driver has no cuTensorMapEncodeTiled: CUDA 12 or newer is needed");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

CUtensorMap make(const void* address, CUtensorMapDataType type, int element_bytes,
                 std::int64_t rows, std::int64_t cols, std::int64_t row_stride, int box_rows) {
  const std::int64_t stride = row_stride * element_bytes;
  if (const std::string why = why_no_map(address, stride); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type, 2, const_cast<void*>(address), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::kInvalidArgument, "no tensor map for [{}, {}] with stride {} at {}: {}", rows,
         cols, row_stride, address, driver_error_text(result));
  }
  return map;
}

}  // namespace

std::string why_no_map(const void* address, std::int64_t row_bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && row_bytes % 16 == 0) return "";
  return fmt::format(
      "a matrix at {} with rows {} bytes apart: the GPU needs both to be multiples of 16", address,
      row_bytes);
}

CUtensorMap map_e4m3(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows) {
  return make(address, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, rows, cols, row_stride, box_rows);
}

CUtensorMap map_bf16(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows) {
  return make(address, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, rows, cols, row_stride, box_rows);
}

}  // namespace rowband::cuda
