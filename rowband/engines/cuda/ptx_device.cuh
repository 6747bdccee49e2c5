// Thin wrappers for the Hopper instructions that the kernels use, one function per instruction: of
// libcu++ (cuda::ptx) where it has them, which the compiler makes the same instructions of. Shared
// memory is told by its 32-bit address, which is all that a descriptor or a barrier's neighbour
// needs. Source: PTX ISA 8.x, sections "mbarrier", "cp.async.bulk.tensor", "wgmma", "stmatrix".
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <cuda/ptx>

namespace rowband::cuda::ptx {

namespace lib = ::cuda::ptx;

__device__ __forceinline__ void* shared_at(std::uint32_t address) {
  return __cvta_shared_to_generic(address);
}
__device__ __forceinline__ std::uint64_t* barrier_at(std::uint32_t address) {
  return static_cast<std::uint64_t*>(shared_at(address));
}

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// --- mbarrier ------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  lib::mbarrier_init(barrier_at(barrier), arrivals);
}

__device__ __forceinline__ void barrier_init_visible_to_cluster() {
  lib::fence_mbarrier_init(lib::sem_release, lib::scope_cluster);
}

__device__ __forceinline__ void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  lib::mbarrier_arrive_expect_tx(lib::sem_release, lib::scope_cta, lib::space_shared,
                                 barrier_at(barrier), bytes);
}

__device__ __forceinline__ void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  while (!lib::mbarrier_try_wait_parity(barrier_at(barrier), parity)) {
  }
}

__device__ __forceinline__ void barrier_arrive(std::uint32_t barrier) {
  lib::mbarrier_arrive(barrier_at(barrier));
}

// Whether the phase is over, without much of a wait.
__device__ __forceinline__ bool barrier_passed(std::uint32_t barrier, std::uint32_t parity) {
  return lib::mbarrier_test_wait_parity(barrier_at(barrier), parity);
}

// Arrives at the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_at(std::uint32_t barrier, std::uint32_t block) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// --- blocks and clusters -------------------------------------------------------------------------

__device__ __forceinline__ std::uint32_t block_of_cluster() {
  return lib::get_sreg_cluster_ctarank();
}

// True in one lane of the warp, always the same. The assembler knows it for one, and makes no loop
// over lanes of what that lane does with uniform registers.
__device__ __forceinline__ bool elected() {
  std::uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xFFFFFFFF;\n"
      "selp.b32 %0, 1, 0, chosen;\n"
      "}"
      : "=r"(chosen));
  return chosen != 0;
}

__device__ __forceinline__ void cluster_sync() {
  lib::barrier_cluster_arrive();
  lib::barrier_cluster_wait();
}

template <int registers>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// --- bulk tensor copies --------------------------------------------------------------------------

__device__ __forceinline__ void tensor_load(std::uint32_t to, const CUtensorMap* map, int inner,
                                            int outer, std::uint32_t barrier) {
  const std::int32_t at[2] = {inner, outer};
  lib::cp_async_bulk_tensor(lib::space_cluster, lib::space_global, shared_at(to), map, at,
                            barrier_at(barrier));
}

// Into the same place of every block in `blocks`, signalling the same barrier of each.
__device__ __forceinline__ void tensor_load_multicast(std::uint32_t to, const CUtensorMap* map,
                                                      int inner, int outer, std::uint32_t barrier,
                                                      std::uint16_t blocks) {
  const std::int32_t at[2] = {inner, outer};
  lib::cp_async_bulk_tensor(lib::space_cluster, lib::space_global, shared_at(to), map, at,
                            barrier_at(barrier), blocks);
}

// `bytes`, a multiple of 16, in a row.
__device__ __forceinline__ void bulk_load(std::uint32_t to, const void* from, int bytes,
                                          std::uint32_t barrier) {
  lib::cp_async_bulk(lib::space_cluster, lib::space_global, shared_at(to), from, bytes,
                     barrier_at(barrier));
}

// Rows and columns beyond the map's bounds are not written.
__device__ __forceinline__ void tensor_store(const CUtensorMap* map, std::uint32_t from, int inner,
                                             int outer) {
  const std::int32_t at[2] = {inner, outer};
  lib::cp_async_bulk_tensor(lib::space_global, lib::space_shared, map, at, shared_at(from));
}

// `bytes` (a multiple of 16) in a row.
__device__ __forceinline__ void bulk_store(void* to, std::uint32_t from, int bytes) {
  lib::cp_async_bulk(lib::space_global, lib::space_shared, to, shared_at(from), bytes);
}

__device__ __forceinline__ void store_commit() { lib::cp_async_bulk_commit_group(); }

// Until every group of this thread has written its bytes.
__device__ __forceinline__ void store_wait_written() {
  lib::cp_async_bulk_wait_group(lib::n32_t<0>{});
}

// Shared memory written by ordinary stores becomes visible to bulk copies.
__device__ __forceinline__ void fence_shared_to_async() {
  lib::fence_proxy_async(lib::space_shared);
}

// Global memory written by bulk copies (waited for) becomes visible to ordinary accesses, and back.
__device__ __forceinline__ void fence_async_global() { lib::fence_proxy_async(lib::space_global); }

// Orders this thread's accesses as the device's other threads see them; without the total order,
// and the time, of __threadfence.
__device__ __forceinline__ void fence_device() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// The same as the peers and the host see them.
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// --- wgmma ---------------------------------------------------------------------------------------

// Rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t address) {
  return static_cast<std::uint64_t>((address & 0x3FFFF) >> 4) | (std::uint64_t{1} << 16) |
         (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1} << 62);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define ROWBAND_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ROWBAND_SIXTEEN(i) \
  ROWBAND_FOUR(i), ROWBAND_FOUR(i + 4), ROWBAND_FOUR(i + 8), ROWBAND_FOUR(i + 12)

// d[64x128] = a[64x32] * b[32x128] (+ d, if accumulate), e4m3 in, fp32 out, both operands in shared
// memory.
__device__ __forceinline__ void wgmma_m64n128k32(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                                 int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, accumulate, 1, 1;\n"
      "}"
      : ROWBAND_SIXTEEN(0), ROWBAND_SIXTEEN(16), ROWBAND_SIXTEEN(32), ROWBAND_SIXTEEN(48)
      : "l"(a), "l"(b), "r"(accumulate));
}

#undef ROWBAND_SIXTEEN
#undef ROWBAND_FOUR

// Keeps the compiler from moving accesses to the accumulators across an asynchronous
// multiplication.
__device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// --- shared and global memory --------------------------------------------------------------------

__device__ __forceinline__ void store_matrices(std::uint32_t to, std::uint32_t a, std::uint32_t b,
                                               std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

__device__ __forceinline__ void store_two_matrices(std::uint32_t to, std::uint32_t a,
                                                   std::uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b)
               : "memory");
}

__device__ __forceinline__ void load_matrices(std::uint32_t from, std::uint32_t& a,
                                              std::uint32_t& b, std::uint32_t& c,
                                              std::uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
}

// To the same address of a block of the cluster, 16 bytes for which `barrier` there waits.
__device__ __forceinline__ void store_shared_at(std::uint32_t to, std::uint32_t block, int4 v,
                                                std::uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .b32 there, barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mapa.shared::cluster.u32 barrier, %6, %1;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%2, %3, %4, %5},"
      " [barrier];\n"
      "}" ::"r"(to),
      "r"(block), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ uint4 load_shared(std::uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_shared(std::uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

__device__ __forceinline__ void store_shared_word(std::uint32_t to, std::uint64_t v) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(to), "l"(v) : "memory");
}
__device__ __forceinline__ std::uint64_t load_shared_word(std::uint32_t from) {
  std::uint64_t v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(from) : "memory");
  return v;
}

__device__ __forceinline__ void store_shared_u32(std::uint32_t to, std::uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ std::uint32_t load_shared_u32(std::uint32_t from) {
  std::uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}

__device__ __forceinline__ float load_shared_float(std::uint32_t from) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  return value;
}

// Four bytes from global to shared memory, asynchronously.
__device__ __forceinline__ void copy_word(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// An arrival once all of this thread's copies are there; the barrier's count includes it.
__device__ __forceinline__ void arrive_when_copied(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void store_shared_float(std::uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

// 16 bytes in one access, which the compiler at times makes four of.
__device__ __forceinline__ void store_global(void* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Past the first-level cache, which does not see what other GPUs write.
__device__ __forceinline__ uint4 load_past_first_level(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_float_past_first_level(const void* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ std::uint32_t load_acquire_system(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

__device__ __forceinline__ void store_release_system(std::uint32_t* p, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// After a fence_system.
__device__ __forceinline__ void store_relaxed_system(std::uint32_t* p, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

// NaN if either is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

__device__ __forceinline__ std::uint64_t clock_ns() { return lib::get_sreg_globaltimer(); }

}  // namespace rowband::cuda::ptx
