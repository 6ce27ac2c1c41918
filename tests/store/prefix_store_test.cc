#include "muster/store/prefix_store.h"

#include "muster/store/memory_store.h"
#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;

TEST(PrefixStore, ARestartedJobReadsNoKeyOfItsFormerLife) {
  const auto shared = std::make_shared<MemoryStore>();
  PrefixStore before("attempt-0", shared);
  before.set("address", "of a dead rank");
  before.add("joined", 2);
  PrefixStore after("attempt-1", shared);
  EXPECT_FALSE(after.check({"address"}));
  EXPECT_EQ(after.add("joined", 1), 1);
  EXPECT_FALSE(after.remove("address"));
  EXPECT_EQ(after.compare_set("address", "", "new"), "new");
  EXPECT_EQ(before.get("address", kLong), "of a dead rank");
}

TEST(PrefixStore, MakesPlainKeysAndNamesThemInFull) {
  const auto shared = std::make_shared<MemoryStore>();
  const auto outer = std::make_shared<PrefixStore>("outer", shared);
  PrefixStore inner("inner", outer);
  inner.set("k", "v");
  EXPECT_EQ(shared->get("outer/inner/k", kLong), "v");
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { inner.get("x", std::chrono::milliseconds(1)); }),
              testing::HasSubstr("'outer/inner/x'"));
}

TEST(PrefixStore, NeedsAStore) {
  error_of(ErrorCode::invalid_argument, [] { PrefixStore("p", nullptr); });
}

}  // namespace
}  // namespace muster
