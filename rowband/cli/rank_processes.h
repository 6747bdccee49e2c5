// The program as its own launcher: the same command again, in a process per rank.
#pragma once

namespace rowband::cli {

inline constexpr int kMaxRanks = 64;

// Beside torchrun's variables: the port where rank 0 listens, in place of MASTER_PORT + 1, and the
// descriptor with which it already does.
inline constexpr const char* kPortVariable = "ROWBAND_MASTER_PORT";
inline constexpr const char* kListenerVariable = "ROWBAND_LISTENER_FD";

// Runs this program again with the arguments it was given, once per rank, and waits for all of
// them. Returns the largest of their exit statuses, where a rank that a signal ended counts as
// kFailed and is named on stderr. When one of them fails, the others have some seconds to end by
// themselves, then they are killed. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on, and who does
// not heed them is killed; so are all when this process is. Throws Error(kIo) when they cannot be
// started.
int run_rank_processes(int world);

}  // namespace rowband::cli
