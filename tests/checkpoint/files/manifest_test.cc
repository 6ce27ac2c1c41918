#include "muster/checkpoint/files/manifest.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using nlohmann::json;
using test::message_of;
using ::testing::HasSubstr;

Manifest sample() {
  return {.position = {.step = 120,
                       .epoch = 3,
                       .batch = 7,
                       .epoch_samples = 448,
                       .samples_seen = 4762,
                       .dataset_size = 1438},
          .world_size = 2,
          .files = {{"model.safetensors",
                     5,
                     "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}},
          .optimizer = R"({"groups":[],"kind":"SGD"})",
          .user = {{"note", "ü"}}};
}

// A manifest with a right checksum, whatever it says.
std::string signed_text(json document) {
  document.erase("sha256");
  const auto text = document.dump();
  Sha256 hash;
  hash.update(text.data(), text.size());
  document["sha256"] = hash.hex();
  return document.dump();
}

TEST(Manifest, RoundTrip) {
  const auto text = format_manifest(sample());
  EXPECT_EQ(json::parse(text)["schema"], "muster.checkpoint/1");
  const auto again = parse_manifest(text, "x");
  EXPECT_EQ(again.position, sample().position);
  EXPECT_EQ(again.world_size, 2);
  EXPECT_EQ(again.files, sample().files);
  EXPECT_EQ(again.optimizer, sample().optimizer);
  EXPECT_EQ(again.user, sample().user);
}

TEST(Manifest, RefusesEveryTruncationAndBitFlip) {
  const auto text = format_manifest(sample());
  for (size_t size = 0; size + 1 < text.size(); ++size)  // the last byte is a newline
    EXPECT_THROW(parse_manifest(text.substr(0, size), "x"), Error) << size;
  for (size_t at = 0; at < text.size(); ++at) {
    if (std::isspace(static_cast<unsigned char>(text[at])))
      continue;
    auto damaged = text;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_THROW(parse_manifest(damaged, "x"), Error) << at << " " << damaged;
  }
}

TEST(Manifest, RefusesWhatItDoesNotMean) {
  const auto good = json::parse(format_manifest(sample()));
  EXPECT_NO_THROW(parse_manifest(signed_text(good), "x"));
  const std::vector<std::pair<json, const char*>> changes = {
      {{{"schema", "muster.checkpoint/2"}}, "schema muster.checkpoint/1"},
      {{{"step", -1}}, "'step'"},
      {{{"step", 1.5}}, "'step'"},
      {{{"epoch", "3"}}, "'epoch'"},
      {{{"world_size", 0}}, "world size"},
      {{{"world_size", 1LL << 40}}, "world size"},
      {{{"files", json::array()}}, "list of files"},
      {{{"files", 3}}, "list of files"},
      {{{"files", {1}}}, "record"},
      {{{"files", {{{"name", "../x"}, {"bytes", 1}, {"sha256", ""}}}}}, "plain file names"},
      {{{"files", {{{"name", "/etc/x"}, {"bytes", 1}, {"sha256", ""}}}}}, "plain file names"},
      {{{"files", {{{"name", ""}, {"bytes", 1}, {"sha256", ""}}}}}, "plain file names"},
      {{{"files", {{{"name", "x"}, {"bytes", -1}, {"sha256", ""}}}}}, "'bytes'"},
      {{{"user", {{"a", 1}}}}, "'a'"},
      {{{"user", 1}}, "'user'"},
  };
  for (const auto& [change, why] : changes) {
    auto document = good;
    document.update(change);
    EXPECT_THAT(message_of([&] { parse_manifest(signed_text(document), "x"); }), HasSubstr(why))
        << change;
  }
  EXPECT_THROW(parse_manifest("[]", "x"), Error);
}

TEST(Manifest, RefusesWhatNestsDeep) {
  for (const std::string& open : {std::string("["), std::string("{\"a\":")}) {
    std::string deep;
    for (int i = 0; i < 400'000; ++i)
      deep += open;
    EXPECT_THROW(parse_manifest(deep, "m"), Error);
  }
  std::string whole = "{\"a\": ";
  whole += std::string(400'000, '[') + std::string(400'000, ']') + "}";
  EXPECT_THROW(parse_manifest(whole, "m"), Error);
}

TEST(Manifest, RefusesTextThatIsNotUtf8) {
  auto manifest = sample();
  manifest.user["a"] = "\xff";
  EXPECT_THAT(message_of([&] { format_manifest(manifest); }), HasSubstr("UTF-8"));
}

TEST(Manifest, VerifiesFilesBySizeAndContent) {
  const test::TempFolder folder;
  test::put_file(folder / "model.safetensors", "hello");
  test::put_file(folder / "manifest.json", format_manifest(sample()));
  EXPECT_EQ(verify_checkpoint(folder.path()).position.step, 120);
  test::put_file(folder / "model.safetensors", "hellp");
  EXPECT_NO_THROW(read_manifest(folder.path()));
  EXPECT_THAT(message_of([&] { verify_checkpoint(folder.path()); }), HasSubstr("checksum"));
  test::put_file(folder / "model.safetensors", "hell");
  EXPECT_THAT(message_of([&] { read_manifest(folder.path()); }),
              HasSubstr("5 bytes, as the manifest says"));
  std::filesystem::remove(folder / "model.safetensors");
  EXPECT_THROW(read_manifest(folder.path()), Error);
  std::filesystem::create_symlink("/etc/hostname", folder / "model.safetensors");
  EXPECT_THAT(message_of([&] { read_manifest(folder.path()); }), HasSubstr("a plain file"));
}

}  // namespace
}  // namespace muster
