// Activity files and files of events, sent to a host that does not have them.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_copy.h"
#include "muster/trace/event_copy.h"
#include "muster/trace/event_file.h"
#include "muster/trace/hosts_folder.h"
#include "muster/trace/merge_trace.h"
#include "muster/trace/read_activity.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

std::vector<int> ranks_of(const std::vector<ActivityFile>& files) {
  std::vector<int> ranks;
  for (const ActivityFile& file : files)
    ranks.push_back(file.rank);
  return ranks;
}

class Copies : public testing::Test {
 protected:
  // A rank that has begun `calls` collectives, of which the last has not ended.
  void write_rank(int rank, int calls, int attempt = 0) const {
    std::filesystem::create_directories(cat(there_.path(), "/activity/", attempt));
    Activity activity(activity_path(there_.path(), attempt, rank),
                      {.rank = rank, .world_size = 4, .attempt = attempt, .device = "cpu:1"});
    activity.note_step(7);
    for (int i = 1; i <= calls; ++i) {
      const uint64_t number =
          activity.begin_call({.group = "world", .operation = "all_reduce", .sequence = i});
      if (i < calls)
        activity.end_call(number, CallState::ended);
    }
  }

  const ScratchFolder there_;
  const ScratchFolder here_;
};

TEST_F(Copies, HaveTheLastCallsAndTheRestWhole) {
  write_rank(1, 3000);
  write_rank(2, 5);
  for (const int rank : {1, 2})
    unpack_activity(pack_activity(there_.path(), 0, rank), here_.path(), 0, rank);
  const auto files = activity_files(here_.path());
  ASSERT_THAT(ranks_of(files), ElementsAre(1, 2));
  for (const ActivityFile& file : files) {
    const ActivityView whole = read_activity(activity_path(there_.path(), 0, file.rank));
    const ActivityView copy = read_activity(file.path);
    EXPECT_EQ(copy.step, 7);
    EXPECT_EQ(copy.host, whole.host);
    EXPECT_EQ(copy.num_calls, whole.num_calls);
    ASSERT_THAT(copy.calls, SizeIs(std::min(whole.calls.size(), kCopiedCalls)));
    for (size_t i = 1; i <= copy.calls.size(); ++i) {
      const CallView& one = whole.calls.at(whole.calls.size() - i);
      const CallView& other = copy.calls.at(copy.calls.size() - i);
      EXPECT_EQ(other.number, one.number);
      EXPECT_EQ(other.text(), one.text());
      EXPECT_EQ(other.end_ns, one.end_ns);
    }
  }
}

// A rank that went on in place keeps the file of its first attempt, under the names of the later
// ones.
TEST_F(Copies, AreOfTheAttemptThatTheirNameSays) {
  write_rank(1, 1, 0);
  std::filesystem::create_directories(there_.path() + "/activity/3");
  std::filesystem::create_hard_link(activity_path(there_.path(), 0, 1),
                                    activity_path(there_.path(), 3, 1));
  unpack_activity(pack_activity(there_.path(), 3, 1), here_.path(), 3, 1);
  EXPECT_THAT(ranks_of(activity_files(here_.path(), 3)), ElementsAre(1));
  EXPECT_THAT(activity_files(here_.path(), 0), SizeIs(0));
  EXPECT_THROW(pack_activity(there_.path(), 4, 1), Error);
}

TEST_F(Copies, DoNotReplaceWhatARankHasWrittenHere) {
  write_rank(1, 9);
  const std::string packed = pack_activity(there_.path(), 0, 1);
  write_rank(1, 3);
  unpack_activity(packed, there_.path(), 0, 1);
  EXPECT_EQ(read_activity(activity_files(there_.path()).at(0).path).num_calls, 3U);
  EXPECT_FALSE(std::filesystem::exists(hosts_folder(there_.path())));
}

TEST_F(Copies, AreOfOneLaunch) {
  write_rank(1, 1);
  make_hosts_folder(here_.path(), "first");
  unpack_activity(pack_activity(there_.path(), 0, 1), here_.path(), 0, 1);
  write_file(hosts_folder(here_.path()) + "/mine", "x");
  keep_copies_of_launch(here_.path(), "first");
  EXPECT_THAT(activity_files(here_.path()), SizeIs(1));
  keep_copies_of_launch(here_.path(), "second");
  EXPECT_THAT(activity_files(here_.path()), SizeIs(0));
  EXPECT_TRUE(std::filesystem::exists(hosts_folder(here_.path()) + "/mine"))
      << "nothing else is removed";
}

TEST_F(Copies, RefuseWhatIsNone) {
  write_rank(1, 1);
  std::string packed = pack_activity(there_.path(), 0, 1);
  EXPECT_THROW(unpack_activity(packed, here_.path(), 0, 2), Error) << "another rank's";
  EXPECT_THROW(unpack_activity("x", here_.path(), 0, 1), Error);
  packed[0] = 'x';
  EXPECT_THROW(unpack_activity(packed, here_.path(), 0, 1), Error);
  EXPECT_TRUE(std::filesystem::is_empty(here_.path()));
}

class EventCopies : public Copies {
 protected:
  static void trace_rank(const std::string& run_dir, int rank, const char* name, int spans = 1) {
    ActivityHeader header = {};
    header.rank = rank;
    header.world_size = 2;
    TraceEventFile file(event_path(run_dir, 0, rank), header);
    for (int i = 0; i < spans; ++i)
      file.add_span(name, 1, 100, 5'000 + i, 9'500 + i);
  }
};

TEST_F(EventCopies, AreMergedWithThoseThatAreHere) {
  trace_rank(here_.path(), 0, "first");
  trace_rank(there_.path(), 1, "second", 1000);
  EXPECT_THAT(event_places(there_.path()), ElementsAre("0/1"));
  const std::string packed = pack_events(there_.path(), "0/1", size_t{1} << 20);
  EXPECT_LT(packed.size(), 1010 * sizeof(TraceEvent) + sizeof(EventHeader))
      << "what is not used is not sent";
  unpack_events(packed, here_.path(), "0/1");
  const auto trace = merge_trace(here_.path());
  ASSERT_TRUE(trace);
  EXPECT_THAT(trace->ranks, ElementsAre(0, 1));
  EXPECT_EQ(trace->events, 1001);
}

TEST_F(EventCopies, BeyondTheLimitStayWhereTheyAre) {
  trace_rank(there_.path(), 1, "span", 1000);
  EXPECT_EQ(pack_events(there_.path(), "0/1", 1000), "");
  EXPECT_THAT(event_places(here_.path()), SizeIs(0));
}

TEST_F(EventCopies, LieNowhereElse) {
  for (const char* const place : {"", "0", "../x", "0/../../x", "0/1/2", "-1/0", "0/01"})
    EXPECT_THROW(unpack_events("x", here_.path(), place), Error) << place;
  EXPECT_TRUE(std::filesystem::is_empty(here_.path()));
}

}  // namespace
}  // namespace muster
