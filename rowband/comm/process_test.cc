#include "rowband/comm/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rowband/comm/conformance.h"

namespace rowband::comm {
namespace {

ProcessIdentity with_pid(pid_t pid) {
  ProcessIdentity identity = this_process();
  identity.pid = pid;
  return identity;
}

pid_t fork_sleeper() {
  const pid_t pid = fork();
  if (pid == 0) {
    for (;;) pause();
  }
  return pid;
}

TEST(Process, IdentityIsStableAndTellsProcessesApart) {
  const ProcessIdentity self = this_process();
  EXPECT_EQ(self, this_process());
  EXPECT_EQ(self.pid, getpid());
  EXPECT_NE(self.pid_namespace, 0u);
  EXPECT_FALSE(self == with_pid(getppid()));
  EXPECT_TRUE(self.sees(with_pid(getppid())));

  ProcessIdentity elsewhere = self;
  elsewhere.pid_namespace += 1;
  EXPECT_TRUE(self.same_machine(elsewhere));
  EXPECT_FALSE(self.sees(elsewhere));
  elsewhere.boot_id[0] ^= 1;
  EXPECT_FALSE(self.same_machine(elsewhere));
}

TEST(Process, L01_AKilledProcessIsGoneEvenBeforeItIsReaped) {
  const pid_t pid = fork_sleeper();
  const PeerProcess peer(with_pid(pid));
  EXPECT_TRUE(peer.alive());
  kill(pid, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  EXPECT_FALSE(peer.alive());
  ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  EXPECT_FALSE(peer.alive());
}

TEST(Process, NothingIsKnownOfAForeignNamespace) {
  ProcessIdentity foreign = this_process();
  foreign.pid_namespace += 1;
  const PeerProcess peer(foreign);
  EXPECT_TRUE(peer.alive());
  conformance::expect_error(ErrorCode::kUnavailable, {"another pid namespace", "--pid=container"},
                            [&] { peer.open_descriptor(0); });
}

TEST(Process, DescriptorsThatDoNotExistAreAnErrorInWords) {
  const pid_t pid = fork_sleeper();
  const PeerProcess peer(with_pid(pid));
  conformance::expect_error(ErrorCode::kUnavailable,
                            {"pidfd_getfd", "fd 987654", "Bad file descriptor", "No such file"},
                            [&] { peer.open_descriptor(987654); });
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

TEST(Process, OpensTheVeryFileOfThePeer) {
  const UniqueFd file(memfd_create("process_test", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "hello", 5), 5);
  const pid_t pid = fork_sleeper();  // holds a copy of the descriptor
  const UniqueFd copy = PeerProcess(with_pid(pid)).open_descriptor(file.get());
  char text[6] = {};
  EXPECT_EQ(pread(copy.get(), text, 5, 0), 5);
  EXPECT_STREQ(text, "hello");
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace rowband::comm
