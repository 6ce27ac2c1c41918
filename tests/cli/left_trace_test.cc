// The trace of a job whose launcher was killed, by the real program.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/event_file.h"
#include "muster_program.h"

namespace muster {
namespace {

using testing::HasSubstr;

// As rank 0 has left it.
void leave_events(const std::string& run_dir) {
  ActivityHeader header = {};
  header.world_size = 1;
  ::gethostname(header.host, sizeof(header.host) - 1);
  TraceEventFile(event_path(run_dir, 0, 0), header).add_span("left", 1, 100, 5'000, 9'500);
}

TEST(LeftTrace, ReportMakesOneOfIt) {
  const ScratchFolder folder;
  const std::string run_dir = folder.path() + "/run";
  leave_events(run_dir);
  const Ran ran = muster({"report", "--trace", "run"}, folder);
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("run/trace.json, 1 events of 1 rank"));
  EXPECT_THAT(read_file(run_dir + "/trace.json"), HasSubstr("\"left\""));
  EXPECT_TRUE(std::filesystem::exists(
      event_path(run_dir, 0, 0)));  // a copy: ranks of other hosts may still write
}

TEST(LeftTrace, ReportSaysWhereThereIsNone) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() + "/run");
  const Ran ran = muster({"report", "--trace", "run"}, folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("expected events"));
}

TEST(LeftTrace, TheNextLaunchMakesOneBeforeItRemovesIt) {
  const ScratchFolder folder;
  const std::string run_dir = folder.path() + "/run";
  const auto launch = [&] {
    return muster({"run", "-n", "1", "--run-dir", "run", "true"}, folder);
  };
  ASSERT_EQ(launch().code, 0);
  leave_events(run_dir);
  const Ran ran = launch();
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("trace of an earlier launch here, which was killed"));
  EXPECT_THAT(read_file(run_dir + "/trace.json"), HasSubstr("\"left\""));
  EXPECT_FALSE(std::filesystem::exists(event_path(run_dir, 0, 0)));
}

TEST(LeftTrace, AJobThatRunsKeepsItsEvents) {
  const ScratchFolder folder;
  ProgramSettings settings;
  settings.environment = {{"MUSTER_RUNTIME_DIR", folder.path()}};
  Program program(
      {"run", "-q", "-n", "1", "--run-dir", "run", "sh", "-c", "echo up; exec sleep 1000"},
      folder,
      settings);
  program.read_until("up");
  leave_events(folder.path() + "/run");
  const Ran ran = muster({"report", "--trace", "run"}, folder, settings);
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.err, HasSubstr("expected the folder of a job that has ended"));
  ::kill(program.pid(), SIGTERM);
  program.finish();
}

}  // namespace
}  // namespace muster
