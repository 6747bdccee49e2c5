// Test code: random operands filled on the GPU, and the unfused path to hold the fused one to.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/numerics/reference.h"

namespace rowband::cuda {

inline std::size_t bytes_of(const Output& y) {
  return static_cast<std::size_t>(y.rows * y.cols) * sizeof(Bf16);
}

// One rank's operands. Every code but NaN occurs; rows may lie further apart than K.
class RandomOperands {
 public:
  RandomOperands(Engine& engine, const PlanSpec& spec, std::uint64_t seed, cudaStream_t stream,
                 std::int64_t row_stride = 0)
      : rows_(spec.max_rows),
        cols_(spec.cols),
        depth_(spec.depth),
        stride_(std::max(row_stride, depth_)),
        x_(unset<E4m3>(engine, rows_ * stride_)),
        w_(unset<E4m3>(engine, cols_ * stride_)),
        x_scales_(unset<float>(engine, rows_ * scale_blocks(depth_))),
        w_scales_(unset<float>(engine, scale_blocks(cols_) * scale_blocks(depth_))) {
    fill_random(x_.get(), rows_ * stride_, seed, stream);
    fill_random(w_.get(), cols_ * stride_, seed + 1, stream);
    fill_random(x_scales_.get(), rows_ * scale_blocks(depth_), seed + 2, stream);
    fill_random(w_scales_.get(), scale_blocks(cols_) * scale_blocks(depth_), seed + 3, stream);
  }

  ActivationView x() const { return x(rows_); }
  ActivationView x(std::int64_t rows) const {
    return {x_.get(), rows, depth_, stride_, x_scales_.get(), scale_blocks(depth_), 1};
  }
  // The same operands with other scales: each depth block's side by side.
  ActivationView x_by_block(std::int64_t rows) const {
    return {x_.get(), rows, depth_, stride_, x_scales_.get(), 1, rows};
  }
  WeightView w() const {
    return {w_.get(), cols_, depth_, stride_, w_scales_.get(), scale_blocks(depth_), 1};
  }

 private:
  template <typename T>
  static std::shared_ptr<T> unset(Engine& engine, std::int64_t count) {
    return std::static_pointer_cast<T>(
        engine.allocate(static_cast<std::size_t>(count) * sizeof(T)));
  }

  const std::int64_t rows_, cols_, depth_, stride_;
  const std::shared_ptr<E4m3> x_, w_;
  const std::shared_ptr<float> x_scales_, w_scales_;
};

// The operands of all ranks on the host, for the float64 reference.
class OperandsOfAllRanks {
 public:
  explicit OperandsOfAllRanks(int world) : ranks_(static_cast<std::size_t>(world)) {}

  // By every rank.
  void fetch(int rank, Engine& engine, const RandomOperands& operands, const TestStream& stream) {
    One& own = ranks_[static_cast<std::size_t>(rank)];
    own.x = operands.x();
    own.w = operands.w();
    const std::int64_t blocks = scale_blocks(own.x.depth);
    const auto bring = [&](auto& to, const auto*& from, std::int64_t count) {
      to.resize(static_cast<std::size_t>(count));
      engine.download(to.data(), from, to.size() * sizeof(to[0]), stream.get());
      from = to.data();
    };
    bring(own.x_codes, own.x.codes, own.x.rows * own.x.row_stride);
    bring(own.w_codes, own.w.codes, own.w.cols * own.w.row_stride);
    bring(own.x_scales, own.x.scales, own.x.rows * blocks);
    bring(own.w_scales, own.w.scales, scale_blocks(own.w.cols) * blocks);
  }
  std::vector<double> reference(const std::vector<std::int64_t>& rows) const {
    std::vector<ActivationView> xs;
    std::vector<WeightView> ws;
    for (const One& one : ranks_) {
      xs.push_back(one.x);
      ws.push_back(one.w);
    }
    return reference_rows(xs, ws, nullptr, rows, 16);
  }

 private:
  struct One {
    ActivationView x;
    WeightView w;
    std::vector<E4m3> x_codes, w_codes;
    std::vector<float> x_scales, w_scales;
  };
  std::vector<One> ranks_;
};

// Of a result on the device, on the host, behind what `to` holds.
inline void append_rows(std::vector<Bf16>& to, Engine& engine, const Output& y,
                        const std::vector<std::int64_t>& rows, const TestStream& stream) {
  for (const std::int64_t row : rows) {
    to.resize(to.size() + static_cast<std::size_t>(y.cols));
    engine.download(to.data() + to.size() - y.cols, y.data + row * y.cols, y.cols * sizeof(Bf16),
                    stream.get());
  }
}

// The unfused path: this engine's GEMM, then the partials of all ranks added in rank order; for
// calls on the fp8 wire what the sum's codes say.
class UnfusedPath {
 public:
  // Collective; before any call is queued.
  UnfusedPath(Communicator& comm, Engine& engine, std::int64_t elements)
      : comm_(comm),
        engine_(engine),
        partial_(allocate_device(static_cast<std::size_t>(elements) * sizeof(Bf16))),
        sum_(allocate_device(static_cast<std::size_t>(elements) * sizeof(Bf16))) {
    check(cudaDeviceSynchronize(), "allocating");
    comm.barrier(Deadline::after(std::chrono::seconds(60)));
  }

  // Collective. [rows, cols] on this rank's GPU.
  const Bf16* run(const ActivationView& x, const WeightView& w, const TestStream& stream,
                  Wire wire = Wire::kBf16) const {
    engine_.gemm(x, w, nullptr, static_cast<Bf16*>(partial_.get()), nullptr, stream.get());
    stream.wait();
    const Bf16* own = static_cast<const Bf16*>(partial_.get());
    std::vector<const Bf16*> partials(static_cast<std::size_t>(comm_.size()));
    const auto deadline = Deadline::after(std::chrono::seconds(60));
    comm_.all_gather(&own, partials.data(), sizeof own, deadline);
    auto* sum = static_cast<Bf16*>(sum_.get());
    add_partials(partials.data(), comm_.size(), x.rows * w.cols, sum, stream.get());
    if (wire == Wire::kFp8) encode_and_widen(sum, x.rows, w.cols, stream.get());
    stream.wait();
    comm_.barrier(deadline);
    return sum;
  }

 private:
  Communicator& comm_;
  Engine& engine_;
  const DeviceMemory partial_, sum_;
};

// Calls whose operands take turns, so that what an earlier call left behind is wrong, held to the
// unfused path's bits.
class CallsInTurn {
 public:
  // Collective; before any call is queued.
  CallsInTurn(Communicator& comm, Engine& engine, GemmAllReduce& op, std::uint64_t seed)
      : op_(op), stream_(comm), found_(engine) {
    const PlanSpec& spec = op.spec();
    const Output whole{nullptr, spec.max_rows, spec.cols};
    for (std::uint64_t set = 0; set < 3; ++set) {
      sets_.push_back({{engine, spec, seed + 100 * set + 4 * comm.rank(), stream_.get()},
                       allocate_device(bytes_of(whole))});
    }
    {
      const UnfusedPath unfused(comm, engine, spec.max_rows * spec.cols);
      for (const auto& [operands, want] : sets_) {
        engine.copy(want.get(), unfused.run(operands.x(), operands.w(), stream_, spec.wire),
                    bytes_of(whole), stream_.get());
        stream_.wait();
      }
    }
    comm.barrier(Deadline::after(std::chrono::seconds(60)));  // freeing waits for the device
  }

  // Of the first `rows` rows of the next operands.
  void queue(std::int64_t rows) {
    const auto& [operands, want] = sets_[next_++ % sets_.size()];
    const Output y =
        op_.run(operands.x(rows), operands.w(), nullptr, nullptr, nullptr, stream_.get());
    check_equal(y.data, want.get(), bytes_of(y), found_.get(), stream_.get());
  }
  void expect_equal() const {
    found_.expect_none("against the unfused path", stream_.get());
    if (const std::string reason = op_.poison(); !reason.empty()) throw std::runtime_error(reason);
  }

 private:
  struct Set {
    RandomOperands operands;
    DeviceMemory want;
  };
  GemmAllReduce& op_;
  const TestStream stream_;
  const DeviceFindings found_;
  std::vector<Set> sets_;
  std::size_t next_ = 0;
};

// Collective. Throws unless the results of all ranks are equal to the bit.
class EqualOnAllRanks {
 public:
  EqualOnAllRanks(Communicator& comm, Engine& engine)
      : comm_(comm), engine_(engine), digest_(device_array<unsigned long long>(engine, 1)) {}
  void expect(const Output& y, const TestStream& stream) const {
    check(cudaMemsetAsync(digest_.get(), 0, sizeof(unsigned long long), stream.get()), "a digest");
    add_digest(y.data, bytes_of(y), digest_.get(), stream.get());
    unsigned long long own = 0;
    engine_.download(&own, digest_.get(), sizeof own, stream.get());
    std::vector<unsigned long long> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(&own, all.data(), sizeof own, Deadline::after(std::chrono::seconds(60)));
    for (unsigned long long other : all) {
      if (other != own) throw std::runtime_error("the ranks' results differ");
    }
  }

 private:
  Communicator& comm_;
  Engine& engine_;
  const std::shared_ptr<unsigned long long> digest_;
};

}  // namespace rowband::cuda
