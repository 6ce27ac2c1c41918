#include "muster/trace/hosts_folder.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "muster/base/fd.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class HostsFolder : public testing::Test {
 protected:
  void make() const {
    make_hosts_folder(run_dir(), "launch-1");
    write_file(hosts_folder(run_dir()) + "/lock", "");  // an agent looks at it
  }
  std::string run_dir() const { return folder_.path(); }

  const ScratchFolder folder_;
};

TEST_F(HostsFolder, WithoutAnAgentThereIsNobodyToAsk) {
  EXPECT_FALSE(can_ask_other_hosts(run_dir()));
  ask_other_hosts(run_dir());
  EXPECT_FALSE(are_other_hosts_asked(run_dir()));
  EXPECT_FALSE(ask_to_describe(run_dir(), 0, {.attempt = 0, .ranks = {1}}));
  EXPECT_TRUE(std::filesystem::is_empty(run_dir()));
}

TEST_F(HostsFolder, SamplesAreAskedForAWhile) {
  make();
  EXPECT_FALSE(are_other_hosts_asked(run_dir()));
  ask_other_hosts(run_dir());
  EXPECT_TRUE(are_other_hosts_asked(run_dir()));
  std::filesystem::last_write_time(
      hosts_folder(run_dir()) + "/asked",
      std::filesystem::file_time_type::clock::now() - std::chrono::seconds(6));
  EXPECT_FALSE(are_other_hosts_asked(run_dir()));
  ask_other_hosts(run_dir());
  EXPECT_TRUE(are_other_hosts_asked(run_dir()));
}

TEST_F(HostsFolder, SamplesAreReadWhileTheyAreFresh) {
  make();
  write_host_sample(run_dir(), 3, "one");
  write_host_sample(run_dir(), 3, "another");
  ASSERT_THAT(fresh_host_samples(run_dir()), SizeIs(1));
  EXPECT_EQ(read_file(fresh_host_samples(run_dir())[0]), "another");
  std::filesystem::last_write_time(
      hosts_folder(run_dir()) + "/3.sample",
      std::filesystem::file_time_type::clock::now() - std::chrono::seconds(5));
  EXPECT_THAT(fresh_host_samples(run_dir()), IsEmpty());
}

// Of files from before it, which have times of the future then.
TEST_F(HostsFolder, AClockThatWasSetBackMakesNothingYoung) {
  make();
  ask_other_hosts(run_dir());
  write_host_sample(run_dir(), 3, "one");
  for (const char* const name : {"/asked", "/3.sample"}) {
    std::filesystem::last_write_time(
        hosts_folder(run_dir()) + name,
        std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  }
  EXPECT_FALSE(are_other_hosts_asked(run_dir()));
  EXPECT_THAT(fresh_host_samples(run_dir()), IsEmpty());
  ask_other_hosts(run_dir());
  EXPECT_TRUE(are_other_hosts_asked(run_dir()));
}

TEST_F(HostsFolder, LateRanksAreAskedForOnce) {
  make();
  const LateRequest one{.attempt = 2, .ranks = {3, 5}}, other{.attempt = 2, .ranks = {4}};
  EXPECT_TRUE(ask_to_describe(run_dir(), 0, one));
  EXPECT_TRUE(ask_to_describe(run_dir(), 1, other));
  write_file(hosts_folder(run_dir()) + "/late", "no request");
  write_file(hosts_folder(run_dir()) + "/late.7", "nonsense");
  EXPECT_THAT(take_late_requests(run_dir()), UnorderedElementsAre(one, other));
  EXPECT_THAT(take_late_requests(run_dir()), IsEmpty());
}

TEST_F(HostsFolder, RequestsAreTextThatIsChecked) {
  const LateRequest request{.attempt = 2, .ranks = {3, 5}};
  EXPECT_EQ(to_text(request), "2 3 5");
  EXPECT_EQ(late_request_from("2 3 5"), request);
  for (const char* const text : {"", "2", "2 -1", "2 x", "2 99999999999"})
    EXPECT_FALSE(late_request_from(text)) << text;
}

TEST_F(HostsFolder, AtTheEndTheCopiesStay) {
  make();
  ask_other_hosts(run_dir());
  remove_host_samples(run_dir());
  EXPECT_FALSE(std::filesystem::exists(hosts_folder(run_dir())));
  make();
  std::filesystem::create_directories(hosts_folder(run_dir()) + "/0");
  write_host_sample(run_dir(), 1, "x");
  remove_host_samples(run_dir());
  EXPECT_THAT(fresh_host_samples(run_dir()), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(hosts_folder(run_dir()) + "/0"));
  EXPECT_EQ(launch_of_hosts_folder(run_dir()), "launch-1") << "the copies are of that";
  EXPECT_FALSE(can_ask_other_hosts(run_dir()));
}

}  // namespace
}  // namespace muster
