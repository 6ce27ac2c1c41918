#include "muster/cluster/kept_entries.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"

namespace muster {
namespace {

using testing::ElementsAre;

TEST(KeptEntries, AreReadFirstAndThenAllThatFollow) {
  KeptEntries entries;
  for (int64_t number = 1; number <= 12; ++number)
    entries.add(number);
  for (const int64_t number : {1, 5, 6, 7, 8, 10, 11, 12})
    entries.remove(number);
  EXPECT_EQ(entries.to_text(), "2-4 9 13-");
  KeptEntries read = KeptEntries::from_text(entries.to_text());
  EXPECT_EQ(read.to_text(), "2-4 9 13-");
  EXPECT_EQ(read.from_here_on(), 13);
  EXPECT_THAT(read.take(3), ElementsAre(2, 3, 4));
  EXPECT_THAT(read.take(3), ElementsAre(9, 13, 14));
}

TEST(KeptEntries, WithoutAListTheyAreAll) {
  EXPECT_THAT(KeptEntries::from_text({}).take(2), ElementsAre(1, 2));
  EXPECT_EQ(KeptEntries().to_text(), "1-");
}

TEST(KeptEntries, RefusesAnotherText) {
  for (const std::string text : {"", "x", "3 2 9-", "4-2 9-", "2-9999999999 5-", "7-9 8-"})
    EXPECT_THROW(KeptEntries::from_text(text), Error) << text;
}

}  // namespace
}  // namespace muster
