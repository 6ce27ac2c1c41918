#include "muster/checkpoint/files/sha256.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "tests/data/files.h"

namespace muster {
namespace {

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

// Source: FIPS 180-2's examples.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256, OfAFileInPieces) {
  const test::TempFolder folder;
  const std::string bytes(3'000'001, 'x');
  test::put_file(folder / "file", bytes);
  EXPECT_EQ(sha256_of_file(folder / "file"), sha256(bytes));
  EXPECT_THROW(sha256_of_file(folder / "none"), Error);
}

}  // namespace
}  // namespace muster
