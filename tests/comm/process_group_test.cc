// The conformance suite over every backend with ranks as threads, and what happens when ranks do
// not agree.
#include "muster/comm/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "tests/comm/conformance.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class Conformance : public ::testing::TestWithParam<std::tuple<const char*, int>> {
};  // backend, world size

TEST_P(Conformance, Holds) {
  const auto& [backend, world_size] = GetParam();
  for (const ConformanceCheck& check : conformance_checks()) {
    SCOPED_TRACE(check.name);
    EXPECT_NO_THROW(run_ranks(
        world_size, check.body, {.backend = backend, .timeout = std::chrono::seconds(60)}));
  }
}

INSTANTIATE_TEST_SUITE_P(ThreadRanks,
                         Conformance,
                         ::testing::Combine(::testing::Values("gloo", "shm"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

ErrorCode code_of(const std::exception_ptr& failure) {
  try {
    if (failure)
      std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code();
  } catch (...) {
  }
  return ErrorCode::internal;
}

// The tests that follow hold for every backend.
class EveryBackend : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ::setenv("MUSTER_BACKEND", GetParam(), 1); }
  void TearDown() override { ::unsetenv("MUSTER_BACKEND"); }
};

INSTANTIATE_TEST_SUITE_P(ThreadRanks,
                         EveryBackend,
                         ::testing::Values("gloo", "shm"),
                         [](const auto& info) { return std::string(info.param); });

// Of equal operations it does not matter which thread's comes first.
TEST_P(EveryBackend, TwoThreadsMayUseOneGroup) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto reduce_often = [&group] {
      for (int call = 0; call < 200; ++call) {
        auto tensor = torch::full({3}, group.rank() + 1.0);
        group.all_reduce(tensor);
        if (!tensor.equal(torch::full({3}, 3.0)))
          throw std::runtime_error(cat("call ", call));
      }
    };
    std::exception_ptr failure;
    std::thread other([&] {
      try {
        reduce_often();
      } catch (...) {
        failure = std::current_exception();
      }
    });
    reduce_often();
    other.join();
    if (failure)
      std::rethrow_exception(failure);
  });
}

// A call that begins while another thread shuts the group down succeeds or is an error.
TEST(ShmBackend, ShutdownMayMeetCallsOfAnotherThread) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> errors{0};
    failures_of_ranks(2,
                      [&](ProcessGroup& group) {
                        std::promise<void> begun;
                        std::thread other([&] {
                          try {
                            for (int call = 0;; ++call) {
                              if (call == 1)
                                begun.set_value();
                              auto tensor = torch::ones({3});
                              call % 2 == 0 ? group.all_reduce(tensor)
                                            : group.all_reduce_async(tensor).wait();
                            }
                          } catch (const Error&) {
                            ++errors;
                          }
                        });
                        begun.get_future().wait_for(std::chrono::seconds(10));
                        try {
                          if (round % 2 == 0)
                            group.c10d()->getBackend(c10::kCPU)->shutdown();
                          group.shutdown();
                        } catch (const Error&) {
                        }
                        other.join();
                      },
                      {.backend = "shm", .timeout = std::chrono::seconds(10)});
    EXPECT_EQ(errors.load(), 2);
  }
}

TEST_P(EveryBackend, ShapesThatDifferShowBothSides) {
  const auto failures = failures_of_ranks(
      2, [](ProcessGroup& group) { group.all_reduce(torch::ones({group.rank() == 0 ? 4 : 5})); });
  for (const auto& failure : failures) {
    EXPECT_EQ(code_of(failure), ErrorCode::invalid_argument);
    EXPECT_NE(message_of(failure).find("all_reduce sum Float [4]"), std::string::npos)
        << message_of(failure);
    EXPECT_NE(message_of(failure).find("all_reduce sum Float [5]"), std::string::npos)
        << message_of(failure);
  }
}

TEST_P(EveryBackend, TypesThatDifferShowBothSides) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    group.broadcast(torch::ones({4}, group.rank() == 2 ? torch::kDouble : torch::kFloat), 0);
  });
  for (const auto& failure : failures)
    EXPECT_EQ(code_of(failure), ErrorCode::invalid_argument) << message_of(failure);
}

// What a rank sends, and what the other one expects.
struct Sides {
  at::Tensor sent, wanted;
  const char* says;
  bool leaves_gloo_whole = true;
};

std::vector<Sides> sides_that_differ() {
  const auto ones = [](int64_t count, at::ScalarType type = at::kFloat) {
    return torch::ones({count}, type);
  };
  return {
      {ones(4), ones(4, at::kInt), "expected 4 × Int from rank 0 with tag 3, got 4 × Float"},
      {ones(4), ones(6), "expected 6 × Float from rank 0 with tag 3, got 4 × Float"},
      {ones(6), torch::ones({2, 2}), "expected 4 × Float from rank 0 with tag 3, got 6 × Float"},
      {ones(4, at::kHalf), ones(4, at::kBFloat16), "expected 4 × BFloat16"},
      {ones(3), ones(0), "expected 0 × Float from rank 0 with tag 3, got 3 × Float"},
      {ones(0), ones(3), "expected 3 × Float from rank 0 with tag 3, got 0 × Float"},
      {ones(20'000), ones(10'000, at::kDouble), "expected 10000 × Double from rank 0"},
      {ones(20'000), ones(10), "expected 10 × Float from rank 0 with tag 3, got 20000 × Float"},
      {ones(10), ones(20'000), "expected 20000 × Float", /*leaves_gloo_whole=*/false},
      {ones(20'000), ones(10'000), "expected 10000 × Float", /*leaves_gloo_whole=*/false},
      {ones(10'000), ones(20'000), "expected 20000 × Float", /*leaves_gloo_whole=*/false},
  };
}

// The message may have come before it is asked for, or may come afterwards. Its sender goes on, and
// the next one is whole, or is an error.
TEST_P(EveryBackend, MessagesOfAnotherTypeOrLengthShowBothSides) {
  for (const auto& [sent, wanted, says, leaves_gloo_whole] : sides_that_differ()) {
    const bool is_whole = leaves_gloo_whole || GetParam() == std::string("shm");
    for (const bool sent_before : {true, false}) {
      SCOPED_TRACE(cat(says, sent_before ? ", sent before" : ", sent afterwards"));
      const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
        if (group.rank() == 0) {
          if (!sent_before)
            group.store()->wait({"asked"});
          auto sending = group.send_async(sent, 1, 3);
          if (sent_before)
            group.store()->set("sent", "");
          sending.wait();
          if (is_whole)
            group.send(torch::full({2, 2}, 7), 1, 3);
          group.store()->wait({"over"});
          return;
        }
        if (sent_before)
          group.store()->wait({"sent"});
        auto receiving = group.recv_async(wanted.clone(), 0, 3);
        group.store()->set("asked", "");
        auto next = torch::zeros({4}, torch::kLong);
        try {
          receiving.wait();
        } catch (const Error&) {
          std::string later;
          try {
            group.recv(next, 0, 3);
          } catch (const Error& error) {
            later = error.message();
          }
          EXPECT_EQ(later.empty(), is_whole) << later;
          EXPECT_EQ(next.equal(torch::full({4}, 7)), is_whole) << "of another shape, and as many";
          group.store()->set("over", "");
          throw;
        }
      });
      EXPECT_FALSE(failures[0]) << message_of(failures[0]);
      EXPECT_EQ(code_of(failures[1]), ErrorCode::invalid_argument) << message_of(failures[1]);
      EXPECT_THAT(message_of(failures[1]), HasSubstr(says));
    }
  }
}

// Ranks that wait for what they send before they wait for what they receive.
TEST_P(EveryBackend, BothMaySendFirst) {
  run_ranks(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    for (const int64_t count : {1, 4'096, 4'097, 300'000}) {
      auto mine = torch::full({count}, group.rank() + 1), got = torch::zeros({count}, at::kLong);
      auto receiving = group.recv_async(got, other, 9);
      group.send(mine, other, 9);
      receiving.wait();
      EXPECT_TRUE(got.equal(torch::full({count}, other + 1))) << count;
      auto sending = group.send_async(mine.neg(), other, 9);
      group.recv(got, other, 9);
      sending.wait();
      EXPECT_TRUE(got.equal(torch::full({count}, -other - 1))) << count;
    }
  });
}

// Messages of different tags are waited for in another order than they were sent in. Of one tag
// they come in their order, also where tags are far apart.
TEST_P(EveryBackend, MessagesComeByTheirTags) {
  run_ranks(2, [](ProcessGroup& group) {
    const std::vector<int> tags{0, 1, 2, 1 << 20, 262'139, 1'000'000'000, 2'147'483'647};
    for (const int64_t count : {3, 5'000}) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (size_t i = 0; i < 2 * tags.size(); ++i) {
        const size_t number = group.rank() == 0 ? i : (i + tags.size() / 2) % tags.size();
        const size_t at = number % tags.size();
        tensors.push_back(torch::full({count}, static_cast<int64_t>(group.rank() == 0 ? i : 0)));
        works.push_back(group.rank() == 0 ? group.send_async(tensors.back(), 1, tags[at])
                                          : group.recv_async(tensors.back(), 0, tags[at]));
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work)
        work->wait();
      for (size_t i = 0; group.rank() == 1 && i < tensors.size(); ++i) {
        const size_t at = (i + tags.size() / 2) % tags.size();
        const size_t expected = i < tags.size() ? at : at + tags.size();
        EXPECT_TRUE(tensors[i].eq(static_cast<int64_t>(expected)).all().item<bool>()) << i;
      }
    }
  });
}

// Over Gloo the first one's receive stays behind, and takes what comes for the second.
TEST_P(EveryBackend, AMessageThatDiffersIsToldWhicheverIsWaitedForFirst) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    std::vector<Work> works;
    if (group.rank() == 0) {
      for (const int64_t count : {6'000, 8'000, 8'000})
        works.push_back(group.send_async(torch::full({count}, count), 1));
      for (Work& sending : works)
        sending.wait();
      group.store()->wait({"over"});
      return;
    }
    std::vector<at::Tensor> got(3);
    for (at::Tensor& tensor : got) {
      tensor = torch::zeros({8'000}, at::kLong);
      works.push_back(group.recv_async(tensor, 0));
    }
    for (const int later : {2, 1}) {
      try {
        works[later].wait();
        EXPECT_TRUE(got[later].eq(8'000).all().item<bool>());
        EXPECT_EQ(group.backend(), "shm");
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::failed_precondition) << error.message();
      }
    }
    try {
      works[0].wait();
    } catch (...) {
      group.store()->set("over", "");
      throw;
    }
  });
  EXPECT_FALSE(failures[0]) << message_of(failures[0]);
  EXPECT_THAT(message_of(failures[1]), HasSubstr("expected 8000 × Long from rank 0"));
}

// A receiver that takes messages of any rank compares them too, and learns whose they are.
TEST_P(EveryBackend, MessagesOfAnyRankAreCompared) {
  run_ranks(3, [](ProcessGroup& group) {
    auto& c10d = *group.c10d();
    std::vector<at::Tensor> one;
    for (const int64_t count : {2, 5'000}) {
      for (int from = 1; from < 3; ++from) {
        if (group.rank() == from) {
          one = {torch::full({count}, from)};
          c10d.send(one, 0, 3)->wait();
        } else if (group.rank() == 0) {
          one = {torch::zeros({count}, from == 1 ? at::kLong : at::kDouble)};
          const auto work = c10d.recvAnysource(one, 3);
          try {
            work->wait();
            EXPECT_EQ(from, 1);
            EXPECT_EQ(work->sourceRank(), 1);
            EXPECT_TRUE(one[0].eq(1).all().item<bool>());
          } catch (const Error& error) {
            EXPECT_THAT(
                error.message(),
                HasSubstr(cat(count, " × Double from rank 2 with tag 3, got ", count, " × Long")));
          }
        }
        group.barrier();
      }
    }
  });
}

TEST_P(EveryBackend, OperationsInAnotherOrderAreFoundEvenWhenAllAreKnown) {
  // Both signatures have been used before, so only the wait that stays unanswered tells.
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    auto a = torch::ones({4});
    auto b = torch::ones({6});
    group.all_reduce(a);
    group.broadcast(b, 0);
    if (group.rank() == 0) {
      group.all_reduce(a);
      group.broadcast(b, 0);
    } else {
      group.broadcast(b, 0);
      group.all_reduce(a);
    }
  });
  int told = 0;
  for (const auto& failure : failures) {
    ASSERT_TRUE(failure);
    if (message_of(failure).find("all_reduce sum Float [4]") != std::string::npos &&
        message_of(failure).find("broadcast from 0 Float [6]") != std::string::npos) {
      ++told;
    }
  }
  EXPECT_GE(told, 1);
}

// Over Gloo what was given up stays under way, and a barrier would wait for it. In memory nothing
// does.
TEST_P(EveryBackend, AfterAMismatchThatWasCaughtTheNextCallWorksOrIsAnError) {
  for (const bool both_are_known : {true, false}) {
    const auto failures = failures_of_ranks(
        2,
        [&](ProcessGroup& group) {
          auto a = torch::ones({4}), b = torch::ones({6});
          group.all_reduce(a);
          if (both_are_known)
            group.broadcast(b, 0);
          EXPECT_THROW(group.rank() == 0 ? group.broadcast(b, 0) : group.all_reduce(a), Error);
          group.store()->set(cat("caught/", group.rank()), "");
          group.store()->wait({"caught/0", "caught/1"});
          group.barrier();
        },
        {.timeout = std::chrono::seconds(60)});
    for (const auto& failure : failures) {
      if (GetParam() == std::string("shm")) {
        EXPECT_FALSE(failure) << message_of(failure);
        continue;
      }
      EXPECT_THAT(code_of(failure), AnyOf(ErrorCode::failed_precondition, ErrorCode::peer_failed));
      EXPECT_THAT(message_of(failure), HasSubstr("given up"));
    }
  }
}

// A child has neither the threads nor the connections: without a word it would wait for ever.
TEST_P(EveryBackend, AForkedChildIsTold) {
  run_ranks(2, [](ProcessGroup& group) {
    auto known = torch::ones({4});
    group.all_reduce(known);
    std::optional<Work> under_way;
    if (group.rank() == 0)
      under_way = group.all_reduce_async(known);
    const pid_t child = ::fork();
    if (child == 0) {
      const auto is_told = [](const std::function<void()>& call) {
        try {
          call();
          return false;
        } catch (const Error& error) {
          return error.code() == ErrorCode::failed_precondition &&
                 error.message().find("a child that it has forked") != std::string::npos;
        }
      };
      bool all = is_told([&] { group.all_reduce(known); });
      all = all && is_told([&] { group.all_reduce(torch::ones({5})); });
      all = all && is_told([&] { group.send(known, 1 - group.rank()); });
      all = all && is_told([&] { group.new_group({0}); });
      all = all && is_told([&] { group.shutdown(); });
      if (under_way)
        all = all && is_told([&] { under_way->wait(); });
      ::_exit(all ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    if (!under_way)
      under_way = group.all_reduce_async(known);
    under_way->wait();
    EXPECT_TRUE(known.equal(torch::full({4}, 4.0F)));
  });
}

TEST_P(EveryBackend, ARankThatDoesNotComeIsNamed) {
  const auto failures = failures_of_ranks(3,
                                          [](ProcessGroup& group) {
                                            auto tensor = torch::ones({4});
                                            group.all_reduce(tensor);
                                            if (group.rank() == 1) {
                                              // Keeps its connections, but does not call, until the
                                              // others have given up.
                                              group.store()->wait({"gave up/0", "gave up/2"});
                                              return;
                                            }
                                            try {
                                              group.all_reduce(tensor);
                                            } catch (const Error& error) {
                                              group.store()->set(cat("gave up/", group.rank()), "");
                                              throw;
                                            }
                                          },
                                          {.timeout = std::chrono::seconds(5)});
  EXPECT_FALSE(failures[1]) << message_of(failures[1]);
  for (const size_t rank : {0, 2}) {
    EXPECT_EQ(code_of(failures[rank]), ErrorCode::timeout) << message_of(failures[rank]);
    EXPECT_NE(message_of(failures[rank]).find("missing rank(s) 1"), std::string::npos)
        << message_of(failures[rank]);
  }
}

// Longer than the time after which a collective looks at the other ranks: Gloo's timed wait for a
// message would close all connections then.
TEST_P(EveryBackend, ASenderMayComeLate) {
  run_ranks(2,
            [](ProcessGroup& group) {
              auto tensor = torch::full({4}, static_cast<float>(group.rank() + 1));
              if (group.rank() == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1200));
                group.send(tensor, 1);
              } else {
                group.recv(tensor, 0);
              }
              EXPECT_EQ(tensor[0].item<float>(), 1);
              group.all_reduce(tensor);
              EXPECT_EQ(tensor[0].item<float>(), 2);
            },
            {.timeout = std::chrono::seconds(60)});
}

TEST_P(EveryBackend, ARankThatLeftIsFoundInEveryCollective) {
  using Collective = void (*)(ProcessGroup&);
  const Collective collectives[] = {
      [](ProcessGroup& group) { group.all_reduce(torch::ones({4})); },
      [](ProcessGroup& group) { group.reduce_scatter(torch::ones({2}), torch::ones({4})); },
      [](ProcessGroup& group) { group.all_gather(torch::ones({8}), torch::ones({4})); },
      [](ProcessGroup& group) { group.barrier(); },
  };
  for (const Collective collective : collectives) {
    const auto failures = failures_of_ranks(2,
                                            [&](ProcessGroup& group) {
                                              collective(group);
                                              if (group.rank() == 0)
                                                collective(group);
                                            },
                                            {.timeout = std::chrono::seconds(60)});
    EXPECT_EQ(code_of(failures[0]), ErrorCode::peer_failed) << message_of(failures[0]);
  }
}

TEST_P(EveryBackend, AnotherOneMayFollowOverTheSameStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  ranks.reserve(3);
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      for (int round = 0; round < 3; ++round) {
        ProcessGroup group = init_process_group(store, rank, 3, {});
        auto tensor = torch::ones({round + 1});  // another first call in every round
        group.all_reduce(tensor);
        EXPECT_EQ(tensor[0].item<float>(), 3);
        auto pair = group.new_group({0, 2});
        if (pair)
          pair->all_reduce(tensor);
        group.shutdown();
      }
    });
  }
  for (auto& rank : ranks)
    rank.join();
}

TEST_P(EveryBackend, RefusesRowsThatDoNotFit) {
  run_ranks(2, [](ProcessGroup& group) {
    EXPECT_THROW(group.all_to_all(torch::ones({2}, torch::kDouble), torch::ones({2})), Error);
    EXPECT_THROW(group.all_to_all(torch::ones({2, 3}), torch::ones({2, 2})), Error);
    EXPECT_THROW(group.reduce_scatter(torch::ones({3}), torch::ones({4})), Error);
  });
}

TEST_P(EveryBackend, RefusesWorkAfterShutdown) {
  run_ranks(2, [](ProcessGroup& group) {
    group.shutdown();
    EXPECT_THROW(group.all_reduce(torch::ones({2})), Error);
    EXPECT_THROW(group.c10d(), Error);
  });
}

TEST(Shm, ACpuGroupOfOneHostTakesIt) {
  run_ranks(2, [](ProcessGroup& group) { EXPECT_EQ(group.backend(), "shm"); });
}

// Three addends: another order, other bits.
TEST(Shm, SumsAreFormedInRankOrder) {
  const std::vector<float> addends = {1e8F, 1e-1F, -1e8F};
  run_ranks(3, [&](ProcessGroup& group) {
    for (const int64_t count : {1, 10'000, 1'000'000}) {
      auto tensor = torch::full({count}, addends[static_cast<size_t>(group.rank())]);
      group.all_reduce(tensor);
      const float expected = (addends[0] + addends[1]) + addends[2];
      EXPECT_TRUE(tensor.equal(torch::full({count}, expected))) << count;
    }
  });
}

TEST(Shm, MoreTypesThanGloo) {
  run_ranks(2, [](ProcessGroup& group) {
    auto flags = torch::tensor({false, true, group.rank() == 0});
    group.all_reduce(flags);
    EXPECT_TRUE(flags.equal(torch::tensor({false, true, true})));
    auto shorts = torch::full({5}, group.rank() + 1, torch::kShort);
    group.all_reduce(shorts, ReduceOp::max);
    EXPECT_TRUE(shorts.equal(torch::full({5}, 2, torch::kShort)));
    auto complex = torch::full(
        {5}, c10::complex<float>(1, static_cast<float>(group.rank())), torch::kComplexFloat);
    group.all_reduce(complex, ReduceOp::avg);
    EXPECT_TRUE(
        complex.equal(torch::full({5}, c10::complex<float>(1, 0.5F), torch::kComplexFloat)));
    EXPECT_THROW(group.all_reduce(flags, ReduceOp::avg), Error);
    group.barrier();
  });
}

// As PyTorch's powerSGD hook does.
TEST(Shm, WhatAnOperationsEndCallsMayUseTheGroup) {
  run_ranks(2, [](ProcessGroup& group) {
    for (const int64_t count : {10, 300'000}) {
      std::vector<at::Tensor> first{torch::ones({count})}, second{torch::ones({count})};
      auto future = group.c10d()->allreduce(first)->getFuture()->then(
          [&](c10::ivalue::Future&) {
            group.c10d()->allreduce(second)->wait();
            group.all_reduce(second[0]);
            return c10::IValue(second[0]);
          },
          c10::TensorType::get());
      future->wait();
      EXPECT_TRUE(second[0].equal(torch::full({count}, 4.0F))) << count;
    }
  });
}

TEST(Shm, ATimeoutEndsEveryRanksOperations) {
  const auto failures = failures_of_ranks(2,
                                          [](ProcessGroup& group) {
                                            auto a = torch::ones({100'000}),
                                                 b = torch::ones({100'000});
                                            if (group.rank() == 1) {
                                              group.store()->wait({"gave up"});
                                              group.all_reduce(a);
                                              return;
                                            }
                                            auto first = group.all_reduce_async(a);
                                            auto second = group.all_reduce_async(b);
                                            EXPECT_THROW(first.wait(), Error);
                                            EXPECT_THROW(second.wait(), Error);
                                            group.store()->set("gave up", "");
                                            throw Error(ErrorCode::timeout, "as it should");
                                          },
                                          {.backend = "shm", .timeout = std::chrono::seconds(4)});
  EXPECT_EQ(code_of(failures[0]), ErrorCode::timeout) << message_of(failures[0]);
  EXPECT_EQ(code_of(failures[1]), ErrorCode::peer_failed) << message_of(failures[1]);
}

// As a watchdog does, that knows nothing of how far the group is.
// Gradients lie there: a child that steps, or frees its model, leaves its parent's alone.
TEST(Shm, AForkedChildHasItsOwnTensors) {
  run_ranks(2, [](ProcessGroup& group) {
    auto tensor = group.c10d()->getDefaultBackend()->allocateTensor(5'000, torch::kFloat);
    tensor.fill_(group.rank() + 1);
    const pid_t child = ::fork();
    if (child == 0) {
      const bool inherited = tensor[4'999].item<float>() == static_cast<float>(group.rank() + 1);
      tensor.data_ptr<float>()[4'999] = 7;
      tensor.reset();
      ::_exit(inherited ? 0 : 1);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    group.all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(torch::full({5'000}, 3.0F)));
  });
}

TEST(Shm, AnotherThreadMayAbortItWhileItIsShutDown) {
  for (const char* name : {"shm", "shm+gloo"}) {
    const auto failures = failures_of_ranks(2,
                                            [](ProcessGroup& group) {
                                              const auto backend =
                                                  group.c10d()->getDefaultBackend();
                                              group.store()->set(cat("made/", group.rank()), "");
                                              group.store()->wait({"made/0", "made/1"});
                                              std::thread watchdog([&] { backend->abort(); });
                                              backend->shutdown();
                                              watchdog.join();
                                            },
                                            {.backend = name, .timeout = std::chrono::seconds(60)});
    for (const auto& failure : failures)
      EXPECT_FALSE(failure) << name << ": " << message_of(failure);
  }
}

TEST(Shm, TensorsOfAnyLayoutInAnyMode) {
  run_ranks(2, [](ProcessGroup& group) {
    auto leaf =
        torch::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    std::vector<at::Tensor> tensors{leaf};
    c10d::BroadcastOptions options;
    {
      const torch::NoGradGuard no_grad;
      leaf.fill_(group.rank() + 1);
      group.c10d()->broadcast(tensors, options)->wait();
    }
    EXPECT_TRUE(leaf.detach().equal(torch::ones({2, 3, 4, 4})));
    std::vector<at::Tensor> expanded{torch::ones({1, 3}).expand({2, 3})};
    EXPECT_ANY_THROW(group.c10d()->allreduce(expanded)->wait()) << "several elements in one place";
    group.barrier();
  });
}

TEST(Shm, SparseTensorsAreSummed) {
  run_ranks(3, [](ProcessGroup& group) {
    const int64_t rank = group.rank();
    // Rank 0 has nothing, rank 1 rows 0 and 1, rank 2 rows 0, 1, 2, 3.
    const auto rows = torch::arange(2 * rank).unsqueeze(0);
    auto tensor = torch::sparse_coo_tensor(
        rows, torch::full({2 * rank, 3}, static_cast<float>(rank)), {5, 3});
    std::vector<at::Tensor> tensors{tensor};
    group.c10d()->allreduce(tensors)->wait();
    auto expected = torch::zeros({5, 3});
    expected.slice(0, 0, 2) += 1;
    expected.slice(0, 0, 4) += 2;
    EXPECT_TRUE(tensor.to_dense().equal(expected)) << tensor.to_dense();
  });
}

// A rank whose program throws makes no call any more, of which nothing but its group tells.
TEST(Gloo, AGroupThatAnExceptionEndsSaysSo) {
  const auto failures = failures_of_ranks(2,
                                          [](ProcessGroup& group) {
                                            if (group.rank() == 0)
                                              throw std::runtime_error("the program's own");
                                            auto x = torch::ones({3});
                                            group.all_reduce(x);
                                          },
                                          {.backend = "gloo"});
  EXPECT_THAT(message_of(failures[1]), HasSubstr("rank 0 has ended with an error"));
}

// Reduced where they lie: no copy in or out.
TEST(Shm, ItsOwnTensorsAreReducedInPlace) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto backend = group.c10d()->getDefaultBackend();
    ASSERT_TRUE(backend->supportsTensorAlloc(-1));
    auto tensor = backend->allocateTensor(300'000, torch::kFloat);
    EXPECT_TRUE(tensor.equal(torch::zeros({300'000})));
    tensor.copy_(torch::arange(300'000) * (group.rank() + 1));
    group.all_reduce(tensor);
    EXPECT_TRUE(tensor.equal(torch::arange(300'000).to(torch::kFloat) * 3));
    group.shutdown();
    tensor.add_(1);  // the memory is the tensor's
    EXPECT_EQ(tensor[1].item<float>(), 4);
  });
}

}  // namespace
}  // namespace muster::testing
