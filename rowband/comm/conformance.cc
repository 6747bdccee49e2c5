#include "rowband/comm/conformance.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/mapping.h"

namespace rowband::comm::conformance {
namespace {

std::byte pattern(int rank, std::size_t index, std::size_t salt) {
  return static_cast<std::byte>((static_cast<std::size_t>(rank) * 131 + index * 7 + salt) & 0xFF);
}

template <typename T>
void expect_equal(const T& got, const T& want, const std::string& what) {
  if (!(got == want)) fail(ErrorCode::kCorrupted, "{}: got {}, want {}", what, got, want);
}

void all_reduce_integers(Communicator& comm, std::int64_t count) {
  std::vector<Bf16> data(static_cast<std::size_t>(count));
  const auto value = [](int rank, std::int64_t i) { return static_cast<float>(i % 5 - 2 + rank); };
  for (std::int64_t i = 0; i < count; ++i) {
    data[static_cast<std::size_t>(i)] = to_bf16(value(comm.rank(), i));
  }
  comm.all_reduce(data.data(), count, soon());
  for (std::int64_t i = 0; i < count; ++i) {
    float want = 0;
    for (int rank = 0; rank < comm.size(); ++rank) want += value(rank, i);
    expect_equal(to_float(data[static_cast<std::size_t>(i)]), want,
                 fmt::format("all_reduce of {} elements, element {}", count, i));
  }
}

void gather_pattern(Communicator& comm, std::size_t bytes) {
  std::vector<std::byte> send(bytes);
  for (std::size_t i = 0; i < bytes; ++i) send[i] = pattern(comm.rank(), i, bytes);
  std::vector<std::byte> recv(bytes * static_cast<std::size_t>(comm.size()), std::byte{0xEE});
  comm.all_gather(send.data(), recv.data(), bytes, soon());
  for (int rank = 0; rank < comm.size(); ++rank) {
    for (std::size_t i = 0; i < bytes; ++i) {
      const auto got = recv[static_cast<std::size_t>(rank) * bytes + i];
      if (got != pattern(rank, i, bytes)) {
        fail(ErrorCode::kCorrupted, "all_gather of {} bytes: byte {} of rank {} is {}", bytes, i,
             rank, static_cast<int>(got));
      }
    }
  }
}

void expect_same_on_all_ranks(Communicator& comm, const std::vector<Bf16>& mine) {
  const std::size_t bytes = mine.size() * sizeof(Bf16);
  std::vector<std::byte> all(bytes * static_cast<std::size_t>(comm.size()));
  comm.all_gather(mine.data(), all.data(), bytes, soon());
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (std::memcmp(all.data() + static_cast<std::size_t>(rank) * bytes, mine.data(), bytes) != 0) {
      fail(ErrorCode::kCorrupted, "the result of rank {} has other bits than that of rank {}", rank,
           comm.rank());
    }
  }
}

void expect_zero(const std::byte* part, std::size_t bytes, int rank) {
  if (reinterpret_cast<std::uintptr_t>(part) % 4096 != 0) {
    fail(ErrorCode::kCorrupted, "the part of rank {} is not 4096-aligned", rank);
  }
  const auto* end = part + bytes;
  if (std::find_if(part, end, [](std::byte b) { return b != std::byte{0}; }) != end) {
    fail(ErrorCode::kCorrupted, "the part of rank {} is not zeroed", rank);
  }
}

}  // namespace

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

std::vector<Bf16> random_values(int rank, std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed * 977u + static_cast<std::uint32_t>(rank));
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<Bf16> values(static_cast<std::size_t>(count));
  for (Bf16& value : values) value = to_bf16(normal(random));
  return values;
}

void check_all_gather(Communicator& comm, std::size_t largest) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{3}, std::size_t{4096},
                                  std::size_t{100001}, largest}) {
    gather_pattern(comm, bytes);
  }
}

void check_all_reduce_exact(Communicator& comm, std::int64_t largest) {
  for (const std::int64_t count : {0L, 1L, 2L, 31L, 32L, 33L, 255L, 256L, 1000L, 4097L}) {
    all_reduce_integers(comm, count);
  }
  all_reduce_integers(comm, largest);
}

void check_all_reduce_bits(Communicator& comm, std::int64_t count) {
  std::vector<float> sums(static_cast<std::size_t>(count));
  for (int rank = 0; rank < comm.size(); ++rank) {
    const auto values = random_values(rank, count, 5);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = rank == 0 ? to_float(values[i]) : sums[i] + to_float(values[i]);
    }
  }
  auto data = random_values(comm.rank(), count, 5);
  comm.all_reduce(data.data(), count, soon());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    expect_equal(data[i].bits, to_bf16(sums[i]).bits, fmt::format("bits of element {}", i));
  }
}

void check_all_reduce_same_everywhere(Communicator& comm, std::int64_t count) {
  auto data = random_values(comm.rank(), count, 6);
  comm.all_reduce(data.data(), count, soon());
  expect_same_on_all_ranks(comm, data);
}

void check_symmetric_memory(Communicator& comm, std::size_t bytes) {
  auto memory = comm.allocate_symmetric(bytes, soon());
  auto second = comm.allocate_symmetric(bytes, soon());
  expect_equal(memory->bytes(), bytes, "bytes of a part");
  for (int rank = 0; rank < comm.size(); ++rank) expect_zero(memory->part(rank), bytes, rank);
  comm.barrier(soon());

  // Each rank writes its stripe of every part; then each reads everything.
  const auto stripe = bytes / static_cast<std::size_t>(comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::byte* to = memory->part(rank) + static_cast<std::size_t>(comm.rank()) * stripe;
    for (std::size_t i = 0; i < stripe; ++i) to[i] = pattern(comm.rank(), i, rank);
  }
  comm.barrier(soon());
  for (int rank = 0; rank < comm.size(); ++rank) {
    for (int writer = 0; writer < comm.size(); ++writer) {
      const std::byte* from = memory->part(rank) + static_cast<std::size_t>(writer) * stripe;
      for (std::size_t i = 0; i < stripe; ++i) {
        if (from[i] != pattern(writer, i, rank)) {
          fail(ErrorCode::kCorrupted, "byte {} that rank {} wrote for rank {} is lost", i, writer,
               rank);
        }
      }
    }
    expect_zero(second->part(rank), bytes, rank);
  }
  comm.barrier(soon());

  // The mapping ends with each rank's own object: rank 0 lets go first, the others still use
  // theirs.
  if (comm.rank() == 0) memory.reset();
  comm.barrier(soon());
  if (memory) memory->part(0)[comm.rank()] = std::byte{1};
  expect_error(ErrorCode::kInvalidArgument, {"part("}, [&] { second->part(comm.size()); });
}

void check_interleaving(Communicator& comm, int rounds) {
  std::mt19937 random(static_cast<std::uint32_t>(comm.rank()) + 1);
  for (int round = 0; round < rounds; ++round) {
    if (random() % 64 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    std::vector<Bf16> data(static_cast<std::size_t>(64 + round % 3 * 32));
    for (Bf16& value : data) value = to_bf16(static_cast<float>(comm.rank() + round % 7));
    comm.all_reduce(data.data(), static_cast<std::int64_t>(data.size()), soon());
    const int size = comm.size();
    const int sum_of_ranks = size * (size - 1) / 2;
    const auto want = static_cast<float>(sum_of_ranks + size * (round % 7));
    for (const Bf16& value : data) {
      expect_equal(to_float(value), want, fmt::format("sum of round {}", round));
    }
    const int mine = round * size + comm.rank();
    std::vector<int> all(static_cast<std::size_t>(size));
    comm.all_gather(&mine, all.data(), sizeof mine, soon());
    for (int rank = 0; rank < size; ++rank) {
      expect_equal(all[static_cast<std::size_t>(rank)], round * size + rank,
                   fmt::format("gather of round {}", round));
    }
    if (round % 4 == 0) comm.barrier(soon());
  }
}

void check_allocation_failure(Communicator& comm, int failing) {
  if (comm.rank() == failing) comm::testing::fail_next_mapping_with = ENOMEM;
  const std::string message =
      expect_error(ErrorCode::kOutOfMemory,
                   {fmt::format("rank {}: window allocation failed", failing),
                    "Cannot allocate memory", "1048576 bytes"},
                   [&] { comm.allocate_symmetric(1 << 20, soon()); });
  agree_on_values(comm, "the message", {{"text", message}}, soon());
  check_symmetric_memory(comm, 1 << 16);
}

void check_count_disagreement(Communicator& comm) {
  const bool last = comm.rank() == comm.size() - 1;
  std::vector<Bf16> data(384, Bf16{0x3F80});
  const std::string message = expect_error(
      ErrorCode::kDisagreement, {"rank 0 has 256", fmt::format("rank {} has 384", comm.size() - 1)},
      [&] { comm.all_reduce(data.data(), last ? 384 : 256, soon()); });
  agree_on_values(comm, "the message", {{"text", message}}, soon());
  for (const Bf16& value : data) expect_equal(value.bits, std::uint16_t{0x3F80}, "untouched data");
  all_reduce_integers(comm, 256);
  expect_error(ErrorCode::kInvalidArgument, {fmt::format("rank {} passed", comm.size() - 1)},
               [&] { comm.all_reduce(last ? nullptr : data.data(), 256, soon()); });
  all_reduce_integers(comm, 256);
}

void check_agreement(Communicator& comm) {
  const int last = comm.size() - 1;
  const bool is_last = comm.rank() == last;
  agree_on_success(comm, "start", "", ErrorCode::kIo, soon());
  expect_error(ErrorCode::kIo, {fmt::format("rank {}: start failed: no disk", last)}, [&] {
    agree_on_success(comm, "start", is_last ? "no disk" : "", ErrorCode::kIo, soon());
  });
  agree_on_values(comm, "shape", {{"M", "256"}, {"K", "128"}}, soon());
  expect_error(
      ErrorCode::kDisagreement,
      {"shape", "M: rank 0 has 256", fmt::format("rank {} has 384", last)}, [&] {
        agree_on_values(comm, "shape", {{"K", "1"}, {"M", is_last ? "384" : "256"}}, soon());
      });
}

std::string expect_error(ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& call) {
  std::string message;
  try {
    call();
  } catch (const Error& error) {
    message = error.what();
    if (error.code() != code) {
      fail(ErrorCode::kCorrupted, "expected '{}', got '{}': {}", error_code_name(code),
           error_code_name(error.code()), message);
    }
    for (const std::string& part : parts) {
      if (message.find(part) == std::string::npos) {
        fail(ErrorCode::kCorrupted, "the error '{}' does not say '{}'", message, part);
      }
    }
    return message;
  }
  fail(ErrorCode::kCorrupted, "expected the error '{}', but the call succeeded",
       error_code_name(code));
}

}  // namespace rowband::comm::conformance
