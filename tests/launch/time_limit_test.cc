#include "muster/launch/time_limit.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include <ctime>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::AllOf;
using testing::Gt;
using testing::HasSubstr;
using testing::Le;

class TimeLimit : public testing::Test {
 protected:
  ~TimeLimit() override { ::unsetenv("SLURM_JOB_END_TIME"); }

  static void end_in(seconds time) {
    ::setenv("SLURM_JOB_END_TIME", cat(std::time(nullptr) + time.count()).c_str(), 1);
  }
  static std::string refusal(const std::string& text) {
    try {
      parse_time_limit(text, "--timeout", seconds(30));
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  }
};

TEST_F(TimeLimit, IsADurationOrTheEndOfTheSlurmJob) {
  EXPECT_EQ(parse_time_limit("", "--timeout", seconds(30)), std::nullopt);
  EXPECT_EQ(parse_time_limit("90m", "--timeout", seconds(30)), minutes(90));
  end_in(minutes(30));
  EXPECT_THAT(*parse_time_limit("slurm", "--timeout", seconds(30)),
              AllOf(Gt(minutes(29) - seconds(10)), Le(minutes(29))));
  EXPECT_THAT(*parse_time_limit("slurm-10m", "--timeout", seconds(30)),
              AllOf(Gt(minutes(20) - seconds(10)), Le(minutes(20))));
}

TEST_F(TimeLimit, WhatIsNoneIsRefused) {
  EXPECT_THAT(refusal("0"), HasSubstr("a time above 0"));
  EXPECT_THAT(refusal("slurm"),
              AllOf(HasSubstr("expected SLURM_JOB_END_TIME"), HasSubstr("squeue")));
  end_in(seconds(40));
  EXPECT_THAT(refusal("slurm"), HasSubstr("expected more than 1m"));
  EXPECT_EQ(refusal("slurm-10s"), "accepted");
  EXPECT_THAT(refusal("slurm-10m"), HasSubstr("expected more than 10m"));
  for (const char* const text : {"slurm-", "slurm-soon", "slurms", "slurm10m"})
    EXPECT_THAT(refusal(text), HasSubstr("expected a time such as")) << text;
  ::setenv("SLURM_JOB_END_TIME", "soon", 1);
  EXPECT_THAT(refusal("slurm"), HasSubstr("an integer in SLURM_JOB_END_TIME"));
  ::setenv("SLURM_JOB_END_TIME", "9223372036854775807", 1);
  EXPECT_EQ(refusal("slurm"), "accepted");
}

}  // namespace
}  // namespace muster
