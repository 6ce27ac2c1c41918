// Two hosts that share a folder: each removes the plan.json that it has written itself, and no
// other.
#include "muster/cluster/plan_file.h"

#include <gmock/gmock.h>

#include <barrier>
#include <iterator>
#include <string>
#include <thread>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/placement/plan_json.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// A plan that says whose it is.
Plan plan_of(const std::string& host) {
  Plan plan;
  plan.policy = host;
  return plan;
}

class PlanFileTest : public testing::Test {
 protected:
  // Whether the plan of that host lies there.
  bool is_of(const std::string& host) const {
    return try_read_file(path_) == plan_to_json(plan_of(host));
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_.path() + "/plan.json";
  PlanFile a_{folder_.path()};
  PlanFile b_{folder_.path()};
};

TEST_F(PlanFileTest, AHostThatIsNotFirstAnyMoreRemovesItsOwn) {
  const Plan plan = plan_of("a");
  a_.begin_round(1, &plan);
  EXPECT_TRUE(is_of("a"));
  a_.begin_round(2, nullptr);
  EXPECT_THAT(paths_in(folder_.path()), IsEmpty());
}

TEST_F(PlanFileTest, TheNextFirstHostsStays) {
  const Plan first = plan_of("a"), next = plan_of("b");
  a_.begin_round(1, &first);
  b_.begin_round(2, &next);
  a_.begin_round(2, nullptr);
  EXPECT_TRUE(is_of("b"));
}

// One host looks and takes the file away, while the other may write one.
TEST_F(PlanFileTest, TheNextFirstHostsStaysWhateverTheOrder) {
  constexpr int kTimes = 2'000;
  const Plan first = plan_of("a"), next = plan_of("b");
  std::barrier both(2);
  std::thread removes([&] {
    for (int i = 0; i < kTimes; ++i) {
      a_.begin_round(1, &first);
      both.arrive_and_wait();
      a_.begin_round(2, nullptr);
      both.arrive_and_wait();
      both.arrive_and_wait();
    }
  });
  int lost = 0;
  ptrdiff_t others = 0;
  for (int i = 0; i < kTimes; ++i) {
    both.arrive_and_wait();
    b_.begin_round(2, &next);
    both.arrive_and_wait();
    lost += is_of("b") ? 0 : 1;
    others += std::ssize(paths_in(folder_.path())) - 1;
    both.arrive_and_wait();
  }
  removes.join();
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(others, 0) << "files were left aside";
}

TEST_F(PlanFileTest, AnAnswerThatComesAfterItsRoundIsNotWritten) {
  a_.begin_round(1, nullptr);
  a_.begin_round(2, nullptr);
  a_.write_later(1, plan_of("a"));
  EXPECT_THAT(paths_in(folder_.path()), IsEmpty());
  a_.write_later(2, plan_of("b"));
  EXPECT_TRUE(is_of("b"));
}

TEST_F(PlanFileTest, AHostWithoutAPartRemovesItsOwnAndWritesNoMore) {
  a_.begin_round(1, nullptr);
  a_.write_later(1, plan_of("a"));
  a_.leave();
  EXPECT_THAT(paths_in(folder_.path()), IsEmpty());
  a_.write_later(1, plan_of("a"));
  EXPECT_THAT(paths_in(folder_.path()), IsEmpty());
  a_.begin_round(2, nullptr);
  a_.write_later(2, plan_of("b"));
  EXPECT_TRUE(is_of("b")) << "it has a part again";
}

TEST_F(PlanFileTest, OfAJobThatIsOverTheFileStaysAsItIs) {
  const Plan plan = plan_of("b");
  a_.begin_round(2, &plan);
  a_.end();
  a_.write_later(2, plan_of("a"));
  EXPECT_TRUE(is_of("b"));
}

TEST_F(PlanFileTest, TheFileOfThePlanFlagStays) {
  PlanFile given(folder_.path(), path_);
  const Plan plan = plan_of("a");
  given.begin_round(1, &plan);
  given.begin_round(2, nullptr);
  EXPECT_TRUE(is_of("a"));
}

TEST_F(PlanFileTest, AFileThatCannotBeWrittenIsNamedAlone) {
  const std::string nowhere = folder_.path() + "/nowhere";
  const Plan plan = plan_of("a");
  try {
    PlanFile(nowhere).begin_round(1, &plan);
    FAIL() << "it was written";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("'" + nowhere + "/plan.json'"), Not(HasSubstr(".tmp-"))));
  }
}

}  // namespace
}  // namespace muster
