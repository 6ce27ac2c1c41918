#include "muster/cli/command_line.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

namespace muster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class CutProgram : public testing::Test {
 protected:
  CutProgram() {
    command_.add_option("-n,--nproc-per-node", text_);
    command_.add_option("--gpus", text_);
    command_.add_flag("-m,--module", flag_);
    command_.add_flag("-q,--quiet", flag_);
  }
  std::vector<std::string> cut(std::vector<std::string> args) {
    args_ = std::move(args);
    return cut_program(command_, args_);
  }

  CLI::App command_;
  std::string text_;
  bool flag_ = false;
  std::vector<std::string> args_;
};

TEST_F(CutProgram, EverythingAfterTheProgramIsThePrograms) {
  EXPECT_THAT(cut({"-n", "2", "./train", "--help", "-n", "4", "--", "--nproc_per_node"}),
              ElementsAre("./train", "--help", "-n", "4", "--", "--nproc_per_node"));
  EXPECT_THAT(args_, ElementsAre("-n", "2"));
}

TEST_F(CutProgram, FlagsTakeTheirValuesOnly) {
  EXPECT_THAT(cut({"-m", "package.train", "x"}), ElementsAre("package.train", "x"));
  EXPECT_THAT(cut({"--gpus=0,1", "train"}), ElementsAre("train"));
  EXPECT_THAT(cut({"-n2", "train"}), ElementsAre("train"));
  EXPECT_THAT(cut({"-qn", "2", "train"}), ElementsAre("train"));
  EXPECT_THAT(cut({"-qm", "train"}), ElementsAre("train"));
  EXPECT_THAT(cut({"--gpus", "--odd", "train"}), ElementsAre("train"));
}

TEST_F(CutProgram, UnderscoresInNamesOnly) {
  EXPECT_THAT(cut({"--nproc_per_node=a_b", "--gpus", "c_d", "my_prog", "--e_f"}),
              ElementsAre("my_prog", "--e_f"));
  EXPECT_THAT(args_, ElementsAre("--nproc-per-node=a_b", "--gpus", "c_d"));
}

TEST_F(CutProgram, DoubleDashStartsTheProgram) {
  EXPECT_THAT(cut({"-q", "--", "-odd-name", "x"}), ElementsAre("-odd-name", "x"));
  EXPECT_THAT(args_, ElementsAre("-q"));
  EXPECT_THAT(cut({"--", "--"}), ElementsAre("--"));
}

TEST_F(CutProgram, NoProgram) {
  EXPECT_THAT(cut({"-q", "-n", "2"}), IsEmpty());
  EXPECT_THAT(cut({"-n"}), IsEmpty());
  EXPECT_THAT(args_, ElementsAre("-n"));
  EXPECT_THAT(cut({}), IsEmpty());
}

TEST_F(CutProgram, UnknownFlagsStayForTheParser) {
  EXPECT_THAT(cut({"--bogus", "train"}), ElementsAre("train"));
  EXPECT_THAT(args_, ElementsAre("--bogus"));
}

}  // namespace
}  // namespace muster
