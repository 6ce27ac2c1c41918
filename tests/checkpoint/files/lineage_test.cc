#include "muster/checkpoint/files/lineage.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/manifest.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void put_saved(const test::TempFolder& folder,
               int64_t step,
               int64_t serial,
               std::vector<SerialRange> abandoned = {}) {
  test::put_checkpoint(folder / cat("step-", step), step, {{"x", {"U8", {1}, "a"}}});
  Manifest manifest = read_manifest_alone(folder / cat("step-", step));
  manifest.serial = serial;
  manifest.abandoned = std::move(abandoned);
  write_file(folder / cat("step-", step, "/", kManifestFile), format_manifest(manifest));
}

std::vector<int64_t> steps_of(const std::vector<SavedFolder>& folders) {
  std::vector<int64_t> steps;
  for (const SavedFolder& folder : folders)
    steps.push_back(folder.step);
  return steps;
}

TEST(Lineage, TheLastSavedComesFirstWhateverItsStep) {
  const test::TempFolder folder;
  EXPECT_EQ(next_serial(folder.path()), 1);
  put_saved(folder, 100, 1);
  put_saved(folder, 200, 2);
  put_saved(folder, 300, 3);
  put_saved(folder, 150, 4);  // gone back to step 100
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(150, 300, 200, 100));
  EXPECT_EQ(next_serial(folder.path()), 5);
}

TEST(Lineage, WithoutSerialNumbersStepsDecide) {
  const test::TempFolder folder;
  for (const int64_t step : {7, 30, 100})
    put_saved(folder, step, 0);
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(100, 30, 7));
  write_file(folder / "step-30/manifest.json", "{");
  put_saved(folder, 8, 1);
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(30, 8, 100, 7))
      << "a damaged one stays beside its step";
}

TEST(Lineage, AbandonedBranchesComeLast) {
  const test::TempFolder folder;
  put_saved(folder, 100, 1);
  put_saved(folder, 200, 2);
  put_saved(folder, 300, 3);
  put_saved(folder, 150, 4, {{.after = 1, .until = 3}});
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(150, 100, 300, 200));
  EXPECT_TRUE(list_by_saving(folder.path())[2].is_abandoned);
  EXPECT_FALSE(list_by_saving(folder.path(), "step-300")[0].is_abandoned) << "it is asked for";
  const auto without_newest = [](const Manifest& manifest) {
    return manifest.serial < 4;
  };
  EXPECT_THAT(steps_of(list_by_saving(folder.path(), without_newest)),
              ElementsAre(150, 300, 200, 100));
}

TEST(Lineage, ANewSerialNumberIsInNoRange) {
  const test::TempFolder folder;
  put_saved(folder, 100, 1);
  EXPECT_EQ(next_serial(folder.path(), {{.after = 1, .until = 7}}), 8)
      << "whatever was removed by hand";
}

TEST(Lineage, GoingBackAbandonsWhatCameAfter) {
  const std::vector<SerialRange> before = {{.after = 2, .until = 3}, {.after = 5, .until = 6}};
  EXPECT_EQ(abandoned_after(before, 7, 7), before);
  EXPECT_EQ(abandoned_after(before, 4, 7), (std::vector<SerialRange>{{2, 3}, {4, 7}}));
  EXPECT_EQ(abandoned_after(before, 1, 7), (std::vector<SerialRange>{{1, 7}}));
}

TEST(Lineage, OneAloneByItsName) {
  const test::TempFolder folder;
  EXPECT_THAT(steps_of(list_by_saving(folder.path(), "")), IsEmpty());
  put_saved(folder, 7, 1);
  put_saved(folder, 8, 2);
  EXPECT_THAT(steps_of(list_by_saving(folder.path(), "step-7")), ElementsAre(7));
  EXPECT_THAT(test::message_of([&] { list_by_saving(folder.path(), "step-9"); }),
              HasSubstr("expected one of step-8, step-7"));
}

}  // namespace
}  // namespace muster
