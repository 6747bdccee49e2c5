// In builds without MPI.
#include <gtest/gtest.h>

#include "rowband/comm/conformance.h"
#include "rowband/comm/mpi.h"

namespace rowband {
namespace {

TEST(MpiUnavailable, TheErrorSaysHowToGetIt) {
  comm::conformance::expect_error(ErrorCode::kUnavailable, {"no MPI", "-DROWBAND_MPI=ON"},
                                  [] { make_mpi_world_communicator(); });
}

}  // namespace
}  // namespace rowband
