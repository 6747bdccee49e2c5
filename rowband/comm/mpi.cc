#include "rowband/comm/mpi.h"

#include <cstdlib>

#include "rowband/base/fail.h"

#ifdef ROWBAND_HAVE_MPI
#include "rowband/comm/mpi_runtime.h"
#endif

namespace rowband {

// The one look at the environment below the layer: how MPI launchers tell a process that it is one
// of theirs.
bool started_by_mpi() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

#ifndef ROWBAND_HAVE_MPI

std::unique_ptr<Communicator> make_mpi_world_communicator() {
  fail(ErrorCode::kUnavailable, "this build has no MPI; build with -DROWBAND_MPI=ON");
}

#else

namespace {

using comm::MpiGroup;
using comm::MpiRuntime;
using comm::MpiWindow;

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::shared_ptr<MpiGroup> group) : group_(std::move(group)) {}
  ~MpiCommunicator() override { group_->release(); }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string_view kind() const override { return "mpi"; }

  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) override;
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) override;
  std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                      Deadline deadline) override;
  bool peer_alive(int rank) const override { return group_->peer_alive(rank); }

 private:
  template <typename Call>
  void out_of_step_if_it_throws(const Call& call);
  void free_released_windows(Deadline deadline);

  const std::shared_ptr<MpiGroup> group_;
};

template <typename Call>
void MpiCommunicator::out_of_step_if_it_throws(const Call& call) {
  MpiRuntime::instance().require_usable();
  try {
    call();
  } catch (const Error& error) {
    const bool in_step =
        error.code() == ErrorCode::kDisagreement || error.code() == ErrorCode::kInvalidArgument;
    if (!in_step) MpiRuntime::instance().record_failure(error);
    throw;
  }
}

void MpiCommunicator::all_gather(const void* send, void* recv, std::size_t bytes,
                                 Deadline deadline) {
  out_of_step_if_it_throws([&] { group_->all_gather(send, recv, bytes, deadline); });
}

void MpiCommunicator::all_reduce(Bf16* data, std::int64_t count, Deadline deadline) {
  out_of_step_if_it_throws([&] { group_->all_reduce(data, count, deadline); });
}

std::unique_ptr<SymmetricMemory> MpiCommunicator::allocate_symmetric(std::size_t bytes,
                                                                     Deadline deadline) {
  constexpr std::string_view kWhat = "window allocation";
  agree_on_values(*this, kWhat, {{"bytes", std::to_string(bytes)}}, deadline);
  free_released_windows(deadline);

  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (const Error& error) {
      failure = error.what();
      code = error.code();
    }
    agree_on_success(*this, kWhat, failure, code, deadline);
  };
  attempt([&] { MpiWindow::require_space(size(), bytes); });
  std::shared_ptr<MpiWindow> window;
  // If MPI itself fails here on some ranks only, the others may hold a window that cannot be freed
  // collectively: it stays until the process ends.
  attempt([&] { window = group_->make_window(bytes); });
  group_->keep(window);
  auto memory = std::make_unique<comm::MpiSymmetricMemory>(window, size());
  // Also the barrier after which every part is zeroed. A window that fails here is released on all
  // ranks, and freed by the next allocation.
  attempt([&] { window->prepare_own_part(rank()); });
  return memory;
}

void MpiCommunicator::free_released_windows(Deadline deadline) {
  const std::size_t count = group_->windows().size();
  if (count == 0) return;
  std::vector<char> own;
  for (const auto& window : group_->windows()) own.push_back(window->released() ? 1 : 0);
  std::vector<char> all(count * static_cast<std::size_t>(size()));
  all_gather(own.data(), all.data(), count, deadline);
  std::vector<char> freeable(count, 1);
  for (std::size_t i = 0; i < all.size(); ++i) freeable[i % count] &= all[i];
  out_of_step_if_it_throws([&] { group_->free_windows(freeable); });
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_world_communicator() {
  auto group = MpiRuntime::instance().make_group(Deadline::after(kDefaultDeadline));
  return std::make_unique<MpiCommunicator>(std::move(group));
}

#endif

}  // namespace rowband
