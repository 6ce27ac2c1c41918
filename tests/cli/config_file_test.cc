#include "muster/cli/config_file.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>

#include "muster/base/error.h"
#include "tests/device/scratch.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ConfigFile : public testing::Test {
 protected:
  ConfigFile() {
    for (const char* flag : {"--nproc-per-node", "--rank-memory", "--scale", "--config"}) {
      command_.add_option(flag, text_);
    }
    command_.add_option("--env", texts_)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    command_.add_option("--wait", text_)->expected(0, 1);
    command_.add_flag("-q,--quiet", flag_);
    command_.add_flag("--trace{1}", text_);
  }

  std::vector<std::string> arguments(const std::string& text) {
    return config_arguments(command_, folder_.write("flags.toml", text));
  }

  std::string error_in(const std::string& text) {
    try {
      arguments(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  CLI::App command_{"", "run"};
  std::string text_;
  std::vector<std::string> texts_;
  bool flag_ = false;
  ScratchFolder folder_;
};

TEST_F(ConfigFile, EveryKindOfValue) {
  EXPECT_THAT(arguments("nproc_per_node = 4"), ElementsAre("--nproc-per-node", "4"));
  EXPECT_THAT(arguments("quiet = true"), ElementsAre("--quiet"));
  EXPECT_THAT(arguments("quiet = false"), testing::IsEmpty());
  EXPECT_THAT(arguments("wait = true"), ElementsAre("--wait"));
  EXPECT_THAT(arguments("wait = \"5m\""), ElementsAre("--wait=5m"));
  EXPECT_THAT(arguments("trace = true"), ElementsAre("--trace"));
  EXPECT_THAT(arguments("trace = \"operators\""), ElementsAre("--trace=operators"));
  EXPECT_THAT(arguments("scale = 1000000.5"), ElementsAre("--scale", "1000000.5"));
  EXPECT_THAT(arguments("scale = \"\""), ElementsAre("--scale", "")) << "and not the next flag";
  EXPECT_THAT(arguments("rank-memory = [\"40GiB\", \"20GiB\"]"),
              ElementsAre("--rank-memory", "40GiB,20GiB"));
  EXPECT_THAT(arguments("[env]\nA = \"x=y z\"\nB = 1"),
              ElementsAre("--env", "A=x=y z", "--env", "B=1"));
  EXPECT_THAT(arguments("env = [\"A=1\", \"B=2\"]"), ElementsAre("--env", "A=1", "--env", "B=2"));
}

TEST_F(ConfigFile, ErrorsNameThePlace) {
  EXPECT_THAT(error_in("\n gpu = 1"),
              HasSubstr("expected a flag of muster run, got 'gpu' (line 2, column 2)"));
  EXPECT_THAT(error_in("nproc_per_nod = 1"),
              HasSubstr("got 'nproc_per_nod'; did you mean 'nproc-per-node'? (line 1, column 1)"));
  EXPECT_THAT(error_in("nproc-per-node = ["), HasSubstr("flags.toml: expected TOML"));
  EXPECT_THAT(error_in("quiet = 1"), HasSubstr("expected true or false for --quiet"));
  EXPECT_THAT(error_in("scale = true"), HasSubstr("expected a value of --scale, got true"));
  EXPECT_THAT(error_in("[scale]\na = 1"), HasSubstr("expected a value of --scale, got a table"));
  EXPECT_THAT(error_in("[run]\nscale = 1"),
              HasSubstr("expected the keys at the top of the file, in no table but [env], got the "
                        "table 'run' (line 1, column 2)"));
  EXPECT_THAT(error_in("run.scale = 1"), HasSubstr("got the table 'run'"));
  EXPECT_THAT(error_in("[[muster]]\nscale = 1"), HasSubstr("got the table 'muster'"));
  EXPECT_THAT(error_in("scale = [[1]]"), HasSubstr("expected a text or a number for --scale"));
  EXPECT_THAT(error_in("config = \"x\""), HasSubstr("got 'config'"));
  EXPECT_THROW(config_arguments(command_, folder_.path() + "/none"), Error);
}

// No value becomes another one on its way to the flag.
TEST_F(ConfigFile, RefusesWhatWouldBeChanged) {
  EXPECT_THAT(error_in("scale = \"a\\u0000b\""),
              HasSubstr("expected a text without NUL for --scale, got 'a?b' (line 1, column 9)"));
  EXPECT_THAT(error_in("env = [\"A=x\\u0000y\"]"), HasSubstr("a text without NUL for --env"));
  EXPECT_THAT(error_in("[env]\nI = [1, 2]"),
              HasSubstr("expected a text or a number for --env, got a list (line 2, column 5)"));
  EXPECT_THAT(error_in("nproc-per-node = 1\nnproc_per_node = 2"),
              HasSubstr("expected --nproc-per-node once, got 'nproc"));
}

TEST_F(ConfigFile, OfSeveralALaterOneWins) {
  const std::string first = folder_.write("first.toml", "scale = 1\nquiet = true");
  const std::string second = folder_.write("second.toml", "scale = 2");
  std::vector<std::string> args = {"--config", first, "--scale", "3", "--config=" + second};
  EXPECT_THAT(use_config_file(command_, args), ElementsAre(first, second));
  EXPECT_THAT(args, ElementsAre("--quiet", "--scale", "1", "--scale", "2", "--scale", "3"));
}

TEST_F(ConfigFile, WhatIsTypedComesAfterwards) {
  const std::string path = folder_.write("flags.toml", "scale = 1");
  std::vector<std::string> args = {"--quiet", "--config", path, "--scale", "2"};
  use_config_file(command_, args);
  EXPECT_THAT(args, ElementsAre("--scale", "1", "--quiet", "--scale", "2"));
  args = {"--config=" + path};
  use_config_file(command_, args);
  EXPECT_THAT(args, ElementsAre("--scale", "1"));
  args = {"--config="};
  EXPECT_THROW(use_config_file(command_, args), Error);
}

TEST_F(ConfigFile, WhatNoReaderSurvives) {
  EXPECT_THAT(error_in("[\u00e9]"), HasSubstr("expected ASCII outside quotes and comments"));
  EXPECT_THAT(error_in("a = \u0259"), HasSubstr("line 1, column 5"));
  std::string nested = "a";
  for (int i = 0; i < 400'000; ++i)
    nested += ".a";
  EXPECT_THAT(error_in(nested + " = 1"), HasSubstr("expected plain keys, got one of many dots"));
  EXPECT_THAT(error_in("[" + nested + "]"), HasSubstr("expected plain keys"));
  EXPECT_THAT(error_in("a = " + std::string(100'000, '[')), HasSubstr("expected TOML"));
  EXPECT_THAT(error_in("a = '\xff'"), HasSubstr("expected UTF-8"));
  for (const char* head : {"[", "[[", "[#", "[=", "[,]", "[.a]", "[[.a]]"})
    EXPECT_THAT(error_in(head), HasSubstr("expected a name behind '['")) << head;
  EXPECT_THAT(error_in("[ \n"), HasSubstr("got the end of the line (line 1, column 1)"));
  for (const char* array : {"a = [}", "a = {b = [}", "a.b=[}"})
    EXPECT_THAT(error_in(array), HasSubstr("expected ']', got '}'")) << array;
  EXPECT_THAT(arguments("scale = [\n  \"1\",\n]  # [x"), ElementsAre("--scale", "1"));
  EXPECT_THAT(arguments("scale = \"\u00e9\"  # \u00e9"), ElementsAre("--scale", "\u00e9"));
}

}  // namespace
}  // namespace muster
