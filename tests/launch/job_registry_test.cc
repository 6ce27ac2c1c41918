#include "muster/launch/job_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/launch/job_start.h"
#include "tests/device/scratch.h"
#include "tests/launch/cleaned_place.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JobNote job_note(const std::string& id, int pid = ::getpid(), int64_t since = 5) {
  return {.id = id,
          .pid = pid,
          .started_ticks = 7,
          .program = "./train --epochs 3",
          .run_dir = "/runs/a",
          .num_ranks = 2,
          .devices = {"GPU-a", "GPU-b"},
          .since_seconds = since};
}

TEST(JobRegistry, AJobWithoutANameHasThatOfItsFolder) {
  JobFacts facts;
  facts.run_id = "none";  // torchrun's for jobs of several hosts
  facts.run_dir = "/home/me/runs/4f2a";
  EXPECT_EQ(muster::job_note(LaunchOptions(), Plan(), facts).id, "4f2a");
  facts.run_id = "mine";
  EXPECT_EQ(muster::job_note(LaunchOptions(), Plan(), facts).id, "mine");
}

TEST(JobRegistry, ListsWhatIsRegisteredAndNoMore) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/runtime";
  EXPECT_THAT(running_jobs(folder), IsEmpty()) << "no folder yet";
  {
    const JobRegistration later(job_note("b", 200, 9), folder);
    const JobRegistration earlier(job_note("a", 100), folder);
    EXPECT_THAT(running_jobs(folder), ElementsAre(job_note("a", 100), job_note("b", 200, 9)));
  }
  EXPECT_THAT(running_jobs(folder), IsEmpty());
}

TEST(JobRegistry, WhatClearsOldFilesAwayLeavesARunningJobsAlone) {
  const CleanedPlace place;
  if (!place.has_cleaner())
    GTEST_SKIP() << "systemd-tmpfiles is not installed";
  const std::string folder = place.path() + "/runtime";
  const JobRegistration job(job_note("a"), folder);
  place.clean();
  EXPECT_THAT(running_jobs(folder), ElementsAre(job_note("a")));
}

TEST(JobRegistry, WhatIsLeftOverIsRemovedAndWhatIsStrangeIsPassedOver) {
  const ScratchFolder scratch;
  const std::string folder = scratch.path() + "/runtime";
  const JobRegistration job(job_note("a"), folder);
  const std::string dead = folder + "/jobs/1.json";
  std::ofstream(dead) << "{}";
  std::filesystem::create_directories(folder + "/jobs/2.json");
  std::filesystem::create_symlink("/dev/zero", folder + "/jobs/3.json");
  EXPECT_THAT(running_jobs(folder), ElementsAre(job_note("a")));
  EXPECT_FALSE(std::filesystem::exists(dead)) << "nobody holds its lock";
}

TEST(JobRegistry, BytesOfAnyKindComeThrough) {
  const ScratchFolder scratch;
  JobNote note = job_note("a");
  note.program = std::string("\xff\x1b[2J", 5) + std::string(100'000, 'x');
  const JobRegistration job(note, scratch.path() + "/r");
  const auto jobs = running_jobs(scratch.path() + "/r");
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_LT(jobs[0].program.size(), 5000U);
}

TEST(JobRegistry, AFolderOfOthersIsNotUsed) {
  const ScratchFolder scratch;
  ::chmod(scratch.path().c_str(), 0755);
  const JobRegistration job(job_note("a"), scratch.path());  // says so in the log, and goes on
  EXPECT_THROW(running_jobs(scratch.path()), Error);
  EXPECT_FALSE(std::filesystem::exists(scratch.path() + "/jobs"));
}

TEST(FindJob, ByIdItsBeginningOrPid) {
  const std::vector<JobNote> jobs = {job_note("abc1", 10), job_note("abd2", 11)};
  EXPECT_EQ(find_job(jobs, "abc1").pid, 10);
  EXPECT_EQ(find_job(jobs, "abd").pid, 11);
  EXPECT_EQ(find_job(jobs, "10").pid, 10);
  const auto error = [&](const std::string& text) -> std::string {
    try {
      find_job(jobs, text);
    } catch (const Error& found) {
      return found.what();
    }
    return "no error";
  };
  EXPECT_THAT(error("ab"), HasSubstr("of 2 jobs; give the pid"));
  const std::vector<JobNote> namesakes = {job_note("none", 10), job_note("none", 11)};
  EXPECT_THROW(find_job(namesakes, "none"), Error) << "which of them?";
  EXPECT_EQ(find_job(namesakes, "11").pid, 11);
  EXPECT_THAT(error("x\n"), HasSubstr("none of 2 running jobs"));
  EXPECT_THAT(error(""), HasSubstr("got ''"));
}

}  // namespace
}  // namespace muster
