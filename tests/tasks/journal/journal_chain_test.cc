// Lines of a journal that were removed, changed or swapped.
#include <gmock/gmock.h>

#include <fstream>

#include "muster/base/strings.h"
#include "muster/tasks/journal/line.h"
#include "tests/tasks/journal/journals.h"

namespace muster::tasks_test {
namespace {

using testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& bytes) {
  std::vector<std::string> lines = split(bytes, '\n');
  lines.pop_back();
  for (std::string& line : lines)
    line += '\n';
  return lines;
}

// What reading the lines says is wrong; empty: nothing.
std::string journal_error(const ScratchFolder& folder, const std::vector<std::string>& lines) {
  std::ofstream(journal_path(folder.path()), std::ios::trunc) << join(lines, "");
  try {
    const JournalState state = read_journal(folder.path(), kTasks);
    return state.cut;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::failed_precondition);
    return error.what();
  }
}

// A line that somebody removed, or wrote anew with a sum of its own, is noticed at the line behind
// it.
TEST(JournalChain, ALineThatIsGoneOrAnotherIsAnErrorThatNamesTheLine) {
  const ScratchFolder folder;
  const std::vector<std::string> lines = lines_of(write_some(folder));
  ASSERT_EQ(lines.size(), 5U);
  for (size_t gone = 0; gone + 1 < lines.size(); ++gone) {
    std::vector<std::string> left = lines;
    left.erase(left.begin() + static_cast<ptrdiff_t>(gone));
    const std::string error = journal_error(folder, left);
    EXPECT_THAT(error, HasSubstr(cat(journal_path(folder.path()), ", line ", gone + 1, ")")));
    EXPECT_THAT(error, HasSubstr(gone == 0 ? "those before it are gone" : "is gone, or changed"));
    EXPECT_THAT(error, HasSubstr("--run-dir"));
  }
  std::vector<std::string> forged = lines;
  std::string json = forged[2].substr(kJournalSumChars + 1);
  json.pop_back();
  json.replace(json.find("\"done\""), 6, "\"again\"");
  forged[2] = journal_line(json);
  EXPECT_THAT(journal_error(folder, forged), HasSubstr(", line 4)"));
  std::vector<std::string> swapped = lines;
  std::swap(swapped[3], swapped[4]);
  EXPECT_THAT(journal_error(folder, swapped), HasSubstr(", line 4)"));
  EXPECT_EQ(journal_error(folder, lines), "");
}

// Records of a muster that did not chain them are read, and those of this one go on behind them.
TEST(JournalChain, RecordsThatAreNotChainedAreRead) {
  const ScratchFolder folder;
  std::vector<std::string> lines = lines_of(write_some(folder));
  for (std::string& line : lines) {
    std::string json = line.substr(kJournalSumChars + 1);
    const size_t after = json.find(",\"after\"");
    line = journal_line(after == std::string::npos ? json.substr(0, json.size() - 1)
                                                   : json.substr(0, after) + "}");
  }
  EXPECT_EQ(journal_error(folder, lines), "");
  {
    Journal journal(folder.path());
    go_on(journal, folder);
    journal.resume("other", 3);
    journal.skip("c", "again", 4);
    journal.sync();
  }
  lines = lines_of(read_file(journal_path(folder.path())));
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(journal_error(folder, lines), "");
  lines.erase(lines.begin() + 4);
  EXPECT_THAT(journal_error(folder, lines), HasSubstr(", line 5)"))
      << "the last of the earlier ones";
}

}  // namespace
}  // namespace muster::tasks_test
