#include "muster/base/log.h"

#include <gmock/gmock.h>

#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::HasSubstr;

// What appears on standard error of three lines, with MUSTER_LOG_LEVEL as given.
std::string shown(const char* level) {
  const ScopedEnv variable("MUSTER_LOG_LEVEL", level);
  testing::internal::CaptureStderr();
  set_log_name("test");
  log(LogLevel::debug, "one");
  log(LogLevel::info, "two");
  log(LogLevel::error, "three");
  return testing::internal::GetCapturedStderr();
}

TEST(Log, ShowsLinesFromALevelOn) {
  EXPECT_EQ(shown(nullptr), "[test] info: two\n[test] error: three\n");
  EXPECT_EQ(shown("debug"), "[test] debug: one\n[test] info: two\n[test] error: three\n");
  EXPECT_EQ(shown("error"), "[test] error: three\n");
  EXPECT_EQ(shown("off"), "");
}

TEST(Log, LevelsMayBeInCapitals) {
  EXPECT_EQ(shown("ERROR"), "[test] error: three\n");
  EXPECT_EQ(shown("Off"), "");
}

TEST(Log, AnUnknownLevelIsSaidOnceAndSilencesNothing) {
  const std::string first = shown("verbose");
  EXPECT_THAT(
      first,
      HasSubstr("MUSTER_LOG_LEVEL: expected debug, info, warn, error or off, got 'verbose'"));
  EXPECT_THAT(first, HasSubstr("[test] info: two\n[test] error: three\n"));
  EXPECT_EQ(shown("verbose"), "[test] info: two\n[test] error: three\n");
}

}  // namespace
}  // namespace muster
