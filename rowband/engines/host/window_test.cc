#include "rowband/engines/host/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "rowband/testing/exact.h"
#include "rowband/testing/watched_communicator.h"

namespace rowband::host {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr int kChunks = 3;

PlanSpec spec_for(int world, int chunks = kChunks) {
  return test_engine(0)->with_tiles(
      {.max_rows = 64, .cols = 64, .depth = 128, .world = world, .chunks = chunks});
}

Deadline soon() { return Deadline::after(30s); }

// Runs body on `world` thread ranks, each with its end of one window. Nobody leaves early.
void with_windows(int world, const std::function<void(Communicator&, Window&)>& body) {
  run_ranks(world, [&](Communicator& comm) {
    Window window(comm, spec_for(world), "", soon());
    body(comm, window);
    comm.barrier(soon());
  });
}

// `action` throws Error(code) whose text holds all of `words`.
void expect_error(ErrorCode code, const std::vector<std::string>& words,
                  const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(Window, WhatWasStoredBeforeAFlagIsSeenAfterIt) {
  with_windows(2, [](Communicator& comm, Window& window) {
    const int rank = comm.rank(), peer = 1 - rank;
    const std::int64_t words = 64 * 64 / 2;  // of the output region
    for (std::int64_t call = 1; call <= 2000; ++call) {
      auto* there = window.at<std::uint32_t>(peer, window.layout().output);
      std::fill_n(there, words, static_cast<std::uint32_t>(call * 2 + rank));
      window.publish(Leg::kGather, peer, 1, call);
      window.await(Leg::kGather, peer, 1, call, soon());
      const auto* here = window.at<std::uint32_t>(rank, window.layout().output);
      const auto want = static_cast<std::uint32_t>(call * 2 + peer);
      ASSERT_TRUE(std::all_of(here, here + words, [=](auto word) { return word == want; }));
      window.publish(Leg::kScatter, peer, 0, call);  // read; may be overwritten
      window.await(Leg::kScatter, peer, 0, call, soon());
    }
  });
}

TEST(Window, R01_EveryLegPeerAndChunkHasAFlagOfItsOwn) {
  with_windows(3, [](Communicator& comm, Window& window) {
    std::int64_t call = 0;
    for (Leg leg : {Leg::kScatter, Leg::kGather}) {
      for (int from = 0; from < 3; ++from) {
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          ++call;
          for (int to = 0; to < 3; ++to) {
            if (comm.rank() == from && to != from) window.publish(leg, to, chunk, call);
          }
          comm.barrier(soon());
          int arrived = 0;
          for (Leg any_leg : {Leg::kScatter, Leg::kGather}) {
            for (int any_from = 0; any_from < 3; ++any_from) {
              for (int any = 0; any < kChunks; ++any) {
                arrived += window.arrived(any_leg, any_from, any, call);
              }
            }
          }
          EXPECT_EQ(arrived, comm.rank() == from ? 0 : 1);
          if (comm.rank() != from) {
            EXPECT_TRUE(window.arrived(leg, from, chunk, call));
            EXPECT_FALSE(window.arrived(leg, from, chunk, call + 1));
            EXPECT_FALSE(window.arrived(leg, from, chunk, call - 1));
          }
          comm.barrier(soon());
        }
      }
    }
  });
}

TEST(Window, ControlWordsLieInTheirRegion) {
  for (int world : {1, 2, 5}) {
    run_ranks(world, [&](Communicator& comm) {
      const PlanSpec spec = spec_for(world, 64);
      Window window(comm, spec, "", soon());
      const WindowLayout& layout = window.layout();
      ASSERT_LE(layout.control + Window::control_bytes(world, 64), layout.received);
      for (int peer = 0; peer < world; ++peer) {
        for (int chunk = 0; chunk < 64; ++chunk) {
          window.publish(Leg::kScatter, peer, chunk, 7);
          window.publish(Leg::kGather, peer, chunk, 7);
        }
      }
      window.publish_card(7, 64);
      window.publish_card(8, 64);
      comm.barrier(soon());
      EXPECT_EQ(window.failure(), "");  // no flag or card lies on it
      window.await_cards(7, 64, soon());
      window.await_cards(8, 64, soon());
      comm.barrier(soon());
      window.report_failure(std::string(2000, 'x'));
      comm.barrier(soon());
      window.await_cards(7, 64, soon());
      for (int peer = 0; peer < world; ++peer) {
        EXPECT_TRUE(window.arrived(Leg::kGather, peer, 63, 7));
      }
      const std::byte* data = window.at(comm.rank(), layout.received);
      EXPECT_TRUE(std::all_of(data, data + (layout.bytes - layout.received),
                              [](std::byte b) { return b == std::byte{0}; }));
      comm.barrier(soon());
    });
  }
}

TEST(Window, AWaitEndsWhenTheBellRingsNotAtTheNextLook) {
  const auto begin = std::chrono::steady_clock::now();
  with_windows(2, [](Communicator& comm, Window& window) {
    const int rank = comm.rank(), peer = 1 - rank;
    for (std::int64_t call = 1; call <= 100; ++call) {
      if (call % 2 == rank) {
        std::this_thread::sleep_for(2ms);  // the peer is asleep by then
        window.publish(Leg::kScatter, peer, 0, call);
      } else {
        window.await(Leg::kScatter, peer, 0, call, soon());
      }
    }
  });
  // 0.2 s of sleep; without the bell a look every 50 ms would make it 5 s.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2500ms);
}

TEST(Window, D06_ADeadlineNamesPeerLegChunkAndCall) {
  with_windows(2, [](Communicator& comm, Window& window) {
    const std::string peer = std::to_string(1 - comm.rank());
    const auto begin = std::chrono::steady_clock::now();
    expect_error(
        ErrorCode::kDeadline,
        {"rank " + std::to_string(comm.rank()) + " waited 0.12 s",
         "chunk 2 of rank " + peer + " (gather leg, call 9)"},
        [&] { window.await(Leg::kGather, 1 - comm.rank(), 2, 9, Deadline::after(120ms)); });
    expect_error(ErrorCode::kDeadline, {"rank " + peer + " to begin call 9"},
                 [&] { window.await_cards(9, 64, Deadline::after(120ms)); });
    const auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_GE(took, 240ms);
    EXPECT_LT(took, 5s);
  });
}

TEST(Window, AFailureReachesEveryRankInItsOwnWords) {
  with_windows(3, [](Communicator& comm, Window& window) {
    EXPECT_EQ(window.failure(), "");
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(20ms);
      window.report_failure("the disk is full");
      window.report_failure("a later reason");
      EXPECT_EQ(window.failure(), "the disk is full");
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    // A wait for rank 0 or 2 ends too.
    expect_error(ErrorCode::kPoisoned, {"rank 1 reported: the disk is full"},
                 [&] { window.await(Leg::kScatter, 2 - comm.rank(), 0, 1, soon()); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    EXPECT_EQ(window.failure(), "rank 1 reported: the disk is full");
    expect_error(ErrorCode::kPoisoned, {"the disk is full"},
                 [&] { window.await_cards(1, 64, soon()); });
  });
}

TEST(Window, ALongReasonIsCutAndEndsWithinItsSlot) {
  with_windows(3, [](Communicator& comm, Window& window) {
    if (comm.rank() == 0) window.report_failure(std::string(5000, 'a'));
    comm.barrier(soon());
    if (comm.rank() == 1) window.report_failure("b");  // its slot follows
    comm.barrier(soon());
    const std::string text = window.failure();
    EXPECT_EQ(std::count(text.begin(), text.end(), 'a'), 507 + (comm.rank() != 0));  // "rank"
    EXPECT_EQ(text.find('b'), std::string::npos);
  });
}

TEST(Window, WhatArrivedCountsEvenFromAPeerThatFailedSince) {
  with_windows(2, [](Communicator& comm, Window& window) {
    if (comm.rank() == 1) {
      window.publish(Leg::kScatter, 0, 0, 1);
      window.report_failure("later");
    }
    comm.barrier(soon());
    if (comm.rank() == 0) {
      EXPECT_NO_THROW(window.await(Leg::kScatter, 1, 0, 1, soon()));
    }
  });
}

TEST(Window, WhatAPeerDidInItsLastMomentCounts) {
  Window* peers = nullptr;
  run_ranks(2, [&](Communicator& comm) {
    // The peer's flag comes after the waiting rank looked for it and before it sees the peer gone.
    WatchedCommunicator watched(comm, [&](int) {
      peers->publish(Leg::kScatter, 0, 0, 1);
      return false;
    });
    Window window(watched, spec_for(2), "", soon());
    if (comm.rank() == 1) peers = &window;
    comm.barrier(soon());
    if (comm.rank() == 0) {
      EXPECT_NO_THROW(window.await(Leg::kScatter, 1, 0, 1, soon()));
    }
    comm.barrier(soon());
  });
}

TEST(Window, D06_APeerThatIsGoneEndsTheWait) {
  auto comms = make_thread_communicators(2);
  std::thread survivor([&] {
    Window window(*comms[0], spec_for(2), "", soon());
    const auto begin = std::chrono::steady_clock::now();
    window.await(Leg::kGather, 1, 1, 1, soon());  // it did that much
    expect_error(ErrorCode::kPeerLost, {"rank 1 is gone", "rank 0", "chunk 0 of rank 1"},
                 [&] { window.await(Leg::kScatter, 1, 0, 1, soon()); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  });
  std::thread leaver([&] {
    Window window(*comms[1], spec_for(2), "", soon());
    window.publish(Leg::kGather, 0, 1, 1);
    std::this_thread::sleep_for(20ms);
    comms[1].reset();
  });
  leaver.join();
  survivor.join();
}

TEST(Window, StopWaitingEndsTheWaitsOfThisRankOnly) {
  with_windows(2, [](Communicator& comm, Window& window) {
    if (comm.rank() == 0) {
      std::thread waiting([&] {
        expect_error(ErrorCode::kPoisoned, {"rank 0: another thread of this rank failed"},
                     [&] { window.await(Leg::kScatter, 1, 0, 1, soon()); });
      });
      std::this_thread::sleep_for(20ms);
      window.stop_waiting();
      waiting.join();
      window.publish(Leg::kScatter, 1, 0, 1);
    } else {
      window.await(Leg::kScatter, 0, 0, 1, soon());
    }
  });
}

// Rank 1 shows its cards; then rank 0 looks.
void with_cards(const std::function<void(Window&)>& before,
                const std::function<void(Window&)>& check) {
  with_windows(2, [&](Communicator& comm, Window& window) {
    if (comm.rank() == 1) before(window);
    comm.barrier(soon());
    if (comm.rank() == 0) check(window);
  });
}

TEST(Window, D03_CardsTellTheRows) {
  with_cards([](Window& w) { w.publish_card(1, 64); },
             [](Window& w) {
               EXPECT_NO_THROW(w.await_cards(1, 64, soon()));
               expect_error(ErrorCode::kDisagreement, {"65 on rank 0", "64 on rank 1"},
                            [&] { w.await_cards(1, 65, soon()); });
             });
}

TEST(Window, ARefusalIsToldAlsoWhenThePeerWentOnRefusing) {
  for (int ahead = 0; ahead < 5; ++ahead) {
    for (std::int64_t call : {1ll, 2ll, (1ll << 32) - 2, (1ll << 32) - 1, 1ll << 31}) {
      with_cards(
          [=](Window& w) {
            for (int i = 0; i <= ahead; ++i) w.publish_card(call + i, kRefused);
          },
          [=](Window& w) {
            expect_error(ErrorCode::kDisagreement, {"rank 1 refused this call", "M=64"},
                         [&] { w.await_cards(call, 64, soon()); });
          });
    }
  }
}

TEST(Window, ACardOfAnEarlierCallIsNotTakenForThisOne) {
  for (std::int64_t call : {3ll, (1ll << 32) + 1, (1ll << 33) - 1}) {
    with_cards([=](Window& w) { w.publish_card(call - 2, 64); },
               [=](Window& w) {
                 expect_error(ErrorCode::kDeadline, {"rank 1 to begin call"},
                              [&] { w.await_cards(call, 64, Deadline::after(60ms)); });
               });
  }
}

TEST(Window, APeerOneCallAheadHidesNothing) {
  with_cards(
      [](Window& w) {
        w.publish_card(1, 64);
        w.publish_card(2, 33);
      },
      [](Window& w) {
        EXPECT_NO_THROW(w.await_cards(1, 64, soon()));
        EXPECT_NO_THROW(w.await_cards(2, 33, soon()));
      });
}

TEST(Window, D01_AFailureOnOneRankFailsTheConstructionOnAll) {
  run_ranks(3, [](Communicator& comm) {
    expect_error(ErrorCode::kOutOfMemory, {"rank 1", "symmetric window", "no luck"},
                 [&] { Window(comm, spec_for(3), comm.rank() == 1 ? "no luck" : "", soon()); });
    Window again(comm, spec_for(3), "", soon());
    comm.barrier(soon());
  });
}

TEST(Window, ContainsEveryByteOfThisRanksPartAndNoOther) {
  with_windows(2, [](Communicator& comm, Window& window) {
    const std::byte* part = window.at(comm.rank(), 0);
    const std::int64_t bytes = window.layout().bytes;
    EXPECT_TRUE(window.contains(part, 1));
    EXPECT_TRUE(window.contains(part + bytes - 1, 1));
    EXPECT_TRUE(window.contains(part - 1, 2));
    EXPECT_TRUE(window.contains(part - 10, bytes + 20));
    EXPECT_FALSE(window.contains(part + bytes, 1));
    EXPECT_FALSE(window.contains(part - 4, 4));
  });
}

}  // namespace
}  // namespace rowband::host
