#include "muster/checkpoint/files/view.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "muster/base/error.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/list.h"
#include "muster/checkpoint/files/safetensors_file.h"
#include "muster/checkpoint/files/verify.h"
#include "tests/checkpoint/plain_checkpoint.h"

namespace muster {
namespace {

using test::put_checkpoint;
using test::put_safetensors;
using test::RawTensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::map<std::string, RawTensor> kTensors = {
    {"a", {"F32", {2, 1}, std::string(8, 'x')}},
    {"b", {"I64", {}, std::string(8, 'y')}},
};

TEST(CheckpointView, AWholeCheckpointIsListedShownAndVerified) {
  const test::TempFolder folder;
  put_checkpoint(folder / "checkpoints/step-7", 7, kTensors);
  const auto inner = checkpoints_folder(folder.path());
  EXPECT_EQ(inner, folder / "checkpoints");
  const auto listed = list_with_state(inner);
  ASSERT_THAT(listed, SizeIs(1));
  EXPECT_EQ(listed[0].problem, "");
  EXPECT_EQ(listed[0].world_size, 2);
  EXPECT_GT(listed[0].written_seconds, 0);

  const auto view = view_checkpoint(listed[0].path);
  EXPECT_EQ(view.manifest.position.step, 7);
  EXPECT_EQ(optimizer_kinds(view), "AdamW");
  const TensorSource model = model_set(view).open();
  EXPECT_EQ(element_count(model.tensors().at("a").kind.shape), 2);
  for (const auto& row : verify_files(listed[0].path))
    EXPECT_EQ(row.problem, "") << row.file;
}

TEST(CheckpointView, WhatAResumeTakesIsListedFirst) {
  const test::TempFolder folder;
  const auto put = [&](int64_t step,
                       int64_t serial,
                       const std::string& parent,
                       std::vector<SerialRange> abandoned) {
    const std::string path = folder / cat("step-", step);
    put_checkpoint(path, step, kTensors);
    Manifest manifest = read_manifest_alone(path);
    manifest.serial = serial;
    manifest.parent = parent;
    manifest.abandoned = std::move(abandoned);
    write_file(path + "/manifest.json", format_manifest(manifest));
  };
  put(100, 1, "", {});
  put(200, 2, "step-100", {});
  put(300, 3, "step-200", {});
  put(150, 4, "step-100", {{.after = 1, .until = 3}});
  std::vector<std::string> rows;
  for (const ListedCheckpoint& row : list_with_state(folder.path()))
    rows.push_back(
        cat(row.step, " ", row.serial.value_or(0), " ", row.parent, " ", row.is_abandoned));
  EXPECT_THAT(
      rows,
      ElementsAre(
          "150 4 step-100 false", "100 1  false", "300 3 step-200 true", "200 2 step-100 true"));
}

TEST(CheckpointView, ChangedContentIsFoundByItsChecksumAlone) {
  const test::TempFolder folder;
  const auto path = folder / "step-1";
  put_checkpoint(path, 1, kTensors);
  auto bytes = read_file(path + "/model.safetensors");
  bytes.back() ^= 1;
  write_file(path + "/model.safetensors", bytes);
  EXPECT_EQ(list_with_state(folder.path()).at(0).problem, "");
  uint64_t read = 0;
  const auto rows = verify_files(path, [&](const std::string&, size_t piece) { read += piece; });
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].problem, "");
  EXPECT_THAT(rows[1].problem, HasSubstr("other content"));
  EXPECT_EQ(read, bytes.size());
}

TEST(CheckpointView, DamageIsARowAndNotAnError) {
  const test::TempFolder folder;
  put_checkpoint(folder / "step-1", 2, kTensors);  // renamed
  put_checkpoint(folder / "step-2", 2, kTensors, "../model.safetensors");
  std::filesystem::create_directory(folder / "step-3");
  std::filesystem::create_directory(folder / "step-4");
  ASSERT_EQ(::mkfifo((folder / "step-4/manifest.json").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo((folder / "step-5").c_str(), 0600), 0);
  put_checkpoint(folder / "step-6", 6, kTensors);
  std::filesystem::resize_file(folder / "step-6/model.safetensors", 9);
  std::filesystem::create_directory(folder / "step-7");
  write_file(folder / "step-7/manifest.json", std::string(1'000'000, '['));
  const auto listed = list_with_state(folder.path());
  ASSERT_THAT(listed, SizeIs(7));
  const std::vector<std::string> why = {"nests deeper",
                                        "got 9",
                                        "Not a directory",
                                        "a plain file",
                                        "cannot find",
                                        "plain file names",
                                        "got a manifest of step 2"};
  for (size_t i = 0; i < why.size(); ++i)
    EXPECT_THAT(listed[i].problem, HasSubstr(why[i])) << listed[i].path;
}

TEST(CheckpointView, AFileAloneHasNoChecksum) {
  const test::TempFolder folder;
  put_safetensors(folder / "x.safetensors", kTensors);
  const auto view = view_checkpoint(folder / "x.safetensors");
  EXPECT_FALSE(view.has_manifest);
  EXPECT_EQ(model_set(view).name, "x.safetensors");
  const auto rows = verify_files(folder / "x.safetensors");
  EXPECT_FALSE(rows.at(0).has_checksum);
  EXPECT_EQ(rows.at(0).problem, "");
  std::filesystem::resize_file(folder / "x.safetensors", view.files[0].bytes - 1);
  EXPECT_THAT(verify_files(folder / "x.safetensors").at(0).problem, HasSubstr("15 bytes of data"));
  EXPECT_THROW(view_checkpoint("/dev/zero"), Error);
  EXPECT_THROW(chosen_set(view, "optim"), Error);
}

TEST(CheckpointView, ACheckpointWithoutPartsHasNone) {
  const test::TempFolder folder;
  put_checkpoint(folder / "step-1", 1, kTensors);
  try {
    part_set(view_checkpoint(folder / "step-1"), "ema");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              cat("checkpoint: expected a checkpoint's folder, which has parts, got '",
                  folder / "step-1",
                  "', which has none; do without the part's name, or name the checkpoint"));
  }
}

TEST(CheckpointView, FilesOfRanksAreOneSet) {
  const test::TempFolder folder;
  CheckpointView view{.path = folder.path(), .has_manifest = true, .manifest = {}, .files = {}};
  for (const char* name : {"model-00000-of-00002.safetensors",
                           "optim-00000-of-00002.safetensors",
                           "model-00001-of-00002.safetensors",
                           "parts.safetensors",
                           "notes.txt",
                           "model-1-of-2.safetensors",
                           "-00000-of-00001.safetensors"})
    view.files.push_back({.name = name, .path = folder / name, .bytes = 0});
  std::vector<std::string> names;
  for (const TensorSet& set : tensor_sets(view))
    names.push_back(set.name + " " + std::to_string(set.files.size()));
  EXPECT_THAT(names,
              ElementsAre("model.safetensors 2",
                          "optim.safetensors 1",
                          "parts.safetensors 1",
                          "model-1-of-2.safetensors 1",
                          "-00000-of-00001.safetensors 1"));
}

TEST(CheckpointView, AHeadOfAbsurdLengthIsRefused) {
  const test::TempFolder folder;
  write_file(folder / "x.safetensors", std::string(8, '\xff') + "{}");
  EXPECT_THAT(verify_files(folder / "x.safetensors").at(0).problem,
              HasSubstr("a header of 18446744073709551615"));
}

TEST(CheckpointView, SeveralOptimizersAreNamed) {
  const test::TempFolder folder;
  const std::string description = R"({"kind":"SGD"})";
  const std::string deep(100'000, '[');
  put_checkpoint(
      folder / "step-1",
      1,
      {{"tensors/net/description", {"U8", {static_cast<int64_t>(description.size())}, description}},
       {"tensors/head/description", {"U8", {static_cast<int64_t>(deep.size())}, deep}},
       {"tensors//description", {"U8", {0}, ""}}},
      kPartsFile,
      "");
  EXPECT_EQ(optimizer_kinds(view_checkpoint(folder / "step-1")), "net: SGD");
}

TEST(ShownText, IsShortAndHarmless) {
  EXPECT_EQ(shown_text("a\x1b[31m"), "a?[31m");
  EXPECT_EQ(shown_text("abcdef", 3), "abc…");
  EXPECT_EQ(shown_text("aé", 2), "a…");
}

}  // namespace
}  // namespace muster
