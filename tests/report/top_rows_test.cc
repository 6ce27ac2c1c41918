#include "muster/report/top_rows.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/report/host_samples.h"
#include "muster/trace/hosts_folder.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TopRank rank_of_b() {
  return {.rank = 3,
          .host = "b",
          .device = "GPU 1",
          .state = "running",
          .pid = 4711,
          .gpu_percent = 37,
          .gpu_used_bytes = uint64_t{20} << 30,
          .gpu_total_bytes = uint64_t{80} << 30,
          .cpu_percent = 101.5,
          .step = 12,
          .loss = std::nan(""),
          .doing = "step > backward"};
}

TEST(TopRows, ComeBackAsTheyWere) {
  const std::vector<TopRank> rows = unpack_top_rows(pack_top_rows({rank_of_b()}));
  ASSERT_THAT(rows, SizeIs(1));
  auto expected = top_row_json(rank_of_b());
  expected["pid"] = nullptr;  // another host's
  EXPECT_EQ(top_row_json(rows[0]).dump(), expected.dump());
  ASSERT_TRUE(rows[0].loss);
  EXPECT_TRUE(std::isnan(*rows[0].loss));
  EXPECT_FALSE(rows[0].memory_bytes);
}

TEST(TopRows, RefuseWhatIsNone) {
  for (const std::string bytes : {"", "x", "[1]", R"([{"rank":"x"}])"})
    EXPECT_THROW(unpack_top_rows(bytes), Error) << bytes;
  EXPECT_THROW(unpack_top_rows(std::string(size_t{8} << 20, '[')), Error)
      << "it would overflow the stack";
  TopRank hostile = rank_of_b();
  hostile.state = "run\033[2Jning";
  EXPECT_EQ(unpack_top_rows(pack_top_rows({hostile})).at(0).state, "run?[2Jning");
}

TEST(HostSamples, AreReadWhileTheyAreFresh) {
  const ScratchFolder folder;
  std::vector<std::string> problems;
  std::filesystem::create_directories(hosts_folder(folder.path()));
  write_host_sample(folder.path(), 1, pack_top_rows({rank_of_b()}));
  write_host_sample(folder.path(), 2, "nonsense");
  EXPECT_THAT(ranks_of_other_hosts(folder.path(), problems), SizeIs(1));
  EXPECT_THAT(problems, ElementsAre(HasSubstr("hosts/2.sample")));
  std::filesystem::last_write_time(
      hosts_folder(folder.path()) + "/1.sample",
      std::filesystem::file_time_type::clock::now() - std::chrono::seconds(11));
  EXPECT_THAT(ranks_of_other_hosts(folder.path(), problems), IsEmpty());
}

}  // namespace
}  // namespace muster
