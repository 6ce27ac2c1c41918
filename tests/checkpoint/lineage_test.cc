#include "muster/checkpoint/lineage.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/manifest.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void put_saved(const test::TempFolder& folder, int64_t step, int64_t serial) {
  test::put_checkpoint(folder / cat("step-", step), step, {{"x", {"U8", {1}, "a"}}});
  Manifest manifest = read_manifest_alone(folder / cat("step-", step));
  manifest.serial = serial;
  write_file(folder / cat("step-", step, "/", kManifestFile), format_manifest(manifest));
}

std::vector<int64_t> steps_of(const std::vector<StepFolder>& folders) {
  std::vector<int64_t> steps;
  for (const StepFolder& folder : folders) steps.push_back(folder.step);
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
  for (const int64_t step : {7, 30, 100}) put_saved(folder, step, 0);
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(100, 30, 7));
  write_file(folder / "step-30/manifest.json", "{");
  put_saved(folder, 8, 1);
  EXPECT_THAT(steps_of(list_by_saving(folder.path())), ElementsAre(30, 8, 100, 7))
      << "a damaged one stays beside its step";
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
