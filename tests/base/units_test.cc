#include "muster/base/units.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::SizeIs;
using testing::StartsWith;

TEST(ParseBytes, ReadsSizesAsPeopleWriteThem) {
  EXPECT_EQ(parse_bytes("512"), 512U);
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("7B"), 7U);
  EXPECT_EQ(parse_bytes("20GiB"), uint64_t{20} << 30);
  EXPECT_EQ(parse_bytes("1.5 MB"), 1'500'000U);
  EXPECT_EQ(parse_bytes(" 2 KiB "), 2048U);
  EXPECT_EQ(parse_bytes("0.5TiB"), uint64_t{1} << 39);
  EXPECT_EQ(parse_bytes("10000000TiB"), uint64_t{10'000'000} << 40);  // beyond a signed number
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"",
                           "GiB",
                           "-1",
                           "-1GiB",
                           "1e3",
                           "12 parsecs",
                           "1gib",
                           "1 GiB x",
                           "nan",
                           "inf",
                           "1,5MB",
                           "99999999999TiB",
                           "0x10"}) {
    try {
      parse_bytes(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(), testing::HasSubstr(std::string("'") + text + "'"));
    }
  }
}

TEST(ParseDuration, ReadsDurationsAsPeopleWriteThem) {
  EXPECT_EQ(parse_duration("250ms"), milliseconds(250));
  EXPECT_EQ(parse_duration("30s"), milliseconds(30'000));
  EXPECT_EQ(parse_duration("5m"), milliseconds(300'000));
  EXPECT_EQ(parse_duration("5min"), milliseconds(300'000));
  EXPECT_EQ(parse_duration("1h30m"), milliseconds(5'400'000));
  EXPECT_EQ(parse_duration("1d"), milliseconds(86'400'000));
  EXPECT_EQ(parse_duration("2"), milliseconds(2000));
  EXPECT_EQ(parse_duration("0.25"), milliseconds(250));
  EXPECT_EQ(parse_duration(" 0s "), milliseconds(0));
}

TEST(ParseDuration, RefusesTheRest) {
  for (const char* text :
       {"", " ", "s", "-5s", "5 s", "5x", "1h30", "0h30", "inf", "99999999999999d", "1s-1s"}) {
    try {
      parse_duration(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.message(), testing::HasSubstr(std::string("'") + text + "'"));
    }
  }
}

TEST(ParseDuration, NamesTheSettingAlone) {
  try {
    parse_duration("soon", "MUSTER_COLLECTIVE_TIMEOUT");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "MUSTER_COLLECTIVE_TIMEOUT: expected a time such as 30s, 250ms, 5m or 1h30m, got "
              "'soon'; correct it");
  }
}

TEST(Format, WritesThemBack) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(85'899'345'920), "80.0 GiB");
  EXPECT_EQ(format_bytes(UINT64_MAX), "16777216.0 TiB");
  EXPECT_EQ(format_duration(milliseconds(250)), "250ms");
  EXPECT_EQ(format_duration(milliseconds(1500)), "1.5s");
  EXPECT_EQ(format_duration(std::chrono::seconds(83)), "1m23s");
  EXPECT_EQ(format_duration(std::chrono::seconds(3661)), "1h01m");
  EXPECT_EQ(format_duration(std::chrono::nanoseconds(5)), "0ms");
}

TEST(Format, SizesThatDifferDoNotLookTheSame) {
  const uint64_t mib = 1 << 20;
  EXPECT_THAT(format_compared_bytes({mib + 1, mib}), ElementsAre("1048577 B", "1048576 B"));
  EXPECT_THAT(format_compared_bytes({2 * mib, mib}), ElementsAre("2.0 MiB", "1.0 MiB"));
  EXPECT_THAT(format_compared_bytes({mib, mib}), ElementsAre("1.0 MiB", "1.0 MiB"));
}

TEST(FormatLocalTime, WritesDateAndTime) {
  const std::string text = format_local_time(1'700'000'000);
  EXPECT_THAT(text, AllOf(StartsWith("2023-11-1"), SizeIs(19)));
}

TEST(FormatSeconds, RoundsToTheMillisecond) {
  EXPECT_EQ(format_seconds(0.0126), "13ms");
  EXPECT_EQ(format_seconds(83), "1m23s");
  EXPECT_EQ(format_seconds(-1), "0ms");
}

}  // namespace
}  // namespace muster
