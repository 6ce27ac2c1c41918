#include "muster/comm/gloo/gloo.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

std::set<std::string> threads_of_process() {
  std::set<std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    found.insert(task.path().filename());
  return found;
}

bool takes_sigpipe(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("SigBlk:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (SIGPIPE - 1) & 1) == 0;
  }
  return false;  // it has ended
}

// A rank that writes to one that died must live on, also where the program keeps SIGPIPE's own end.
TEST(Gloo, ItsThreadsAreNotEndedByAClosedConnection) {
  run_ranks(1,
            [](ProcessGroup& group) {
              const auto before = threads_of_process();
              const auto other = group.new_group({0});
              std::set<std::string> made;
              for (const auto& thread : threads_of_process()) {
                if (!before.contains(thread))
                  made.insert(thread);
              }
              EXPECT_FALSE(made.empty());
              for (const auto& thread : made)
                EXPECT_FALSE(takes_sigpipe(thread)) << thread;
              EXPECT_TRUE(takes_sigpipe(std::to_string(::gettid())));
            },
            {.backend = "gloo"});
}

}  // namespace
}  // namespace muster::testing
