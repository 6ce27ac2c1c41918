#include "muster/checkpoint/files/verify.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/checkpoint/files/view.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using test::put_safetensors;
using test::RawTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const RawTensor kWord = {"F32", {1}, "word"};

// As a hub has a model: an index and files of any names.
void put_hub_folder(const test::TempFolder& folder) {
  put_safetensors(folder / "a.safetensors", {{"x", kWord}, {"y", kWord}});
  put_safetensors(folder / "b.safetensors", {{"z", kWord}});
  write_file(folder / "model.safetensors.index.json",
             R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors","z":"b.safetensors"}})");
}

TEST(CheckpointVerify, AHubFolderIsOneModelAndHasNoChecksums) {
  const test::TempFolder folder;
  put_hub_folder(folder);
  const TensorSet model = model_set(view_checkpoint(folder.path()));
  EXPECT_EQ(model.name, "model.safetensors");
  EXPECT_THAT(model.open().tensors(), SizeIs(3));
  std::vector<std::string> files;
  for (const VerifiedFile& row : verify_files(folder.path())) {
    EXPECT_EQ(row.problem, "") << row.file;
    EXPECT_FALSE(row.has_checksum);
    files.push_back(row.file);
  }
  EXPECT_THAT(files, ElementsAre("model.safetensors.index.json", "a.safetensors", "b.safetensors"));
}

TEST(CheckpointVerify, ATensorOfTheIndexThatNoFileHasIsDamage) {
  const test::TempFolder folder;
  put_hub_folder(folder);
  put_safetensors(folder / "b.safetensors", {{"other", kWord}});
  const auto rows = verify_files(folder.path());
  EXPECT_EQ(rows.at(1).problem, "");
  EXPECT_THAT(rows.at(2).problem, HasSubstr("expected 'z'"));
  EXPECT_THROW(model_set(view_checkpoint(folder.path())).open(), Error);

  std::filesystem::remove(folder / "a.safetensors");
  EXPECT_THAT(verify_files(folder.path()).at(1).problem, HasSubstr("cannot open"));
  write_file(folder / "model.safetensors.index.json", "{}");
  EXPECT_THAT(verify_files(folder.path()).at(0).problem, HasSubstr("weight_map"));
}

TEST(CheckpointVerify, ACheckpointWithoutItsManifestIsDamaged) {
  const test::TempFolder folder;
  std::filesystem::create_directory(folder / "step-3");
  put_safetensors(folder / "step-3/model.safetensors", {{"x", kWord}});
  EXPECT_NE(verify_files(folder / "step-3/").at(0).problem, "");
  std::filesystem::rename(folder / "step-3", folder / "gpt2");
  EXPECT_EQ(verify_files(folder / "gpt2").at(0).problem, "");
  std::filesystem::create_directory(folder / "gpt2/manifest.json");
  EXPECT_NE(verify_files(folder / "gpt2").at(0).problem, "");
  EXPECT_THROW(view_checkpoint(folder / "gpt2"), Error);
}

}  // namespace
}  // namespace muster
