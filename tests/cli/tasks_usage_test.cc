// `muster tasks` by the real program: how wrong usage is told, before anything starts.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "muster/base/strings.h"
#include "muster_program.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Host box of four A100s and 16 cores; ok.toml is a task that leaves the file `began`.
class TasksUsage : public testing::Test {
 protected:
  TasksUsage() {
    folder_.write("box.toml", "[[host]]\nname = \"box\"\ngpus = \"4xA100-40GB\"\ncores = 16\n");
    folder_.write("ok.toml", spec("needs = { cpus = 1 }"));
  }

  // A task with one more line, at line 4.
  static std::string spec(const std::string& line) {
    return cat("[[task]]\nname = \"a\"\nargv = [\"touch\", \"began\"]\n", line, "\n");
  }

  Ran tasks(std::vector<std::string> args) const {
    args.insert(args.begin(), "tasks");
    return muster(std::move(args), folder_);
  }

  // That it is wrong usage, told with `text`, and that nothing was done.
  void expect_refused(const std::vector<std::string>& args, const std::string& text) const {
    const Ran ran = tasks(args);
    EXPECT_EQ(ran.code, 2) << join(args, " ") << "\n" << ran.err;
    EXPECT_THAT(ran.err, AllOf(StartsWith("muster tasks: "), HasSubstr(text))) << join(args, " ");
    EXPECT_FALSE(exists("began") || exists("runs")) << join(args, " ");
  }

  bool exists(const std::string& name) const { return fs::exists(folder_.path() + "/" + name); }

  const ScratchFolder folder_;
};

TEST_F(TasksUsage, NeedsThatCannotBeMetAreToldWithTheirPlace) {
  struct Case {
    const char* line;
    std::vector<std::string> flags;
    const char* error;
  };
  const std::vector<Case> cases = {
      {"on = \"7\"", {}, "q.toml:4:7: task a: on = '7': expected the index of a GPU that can be used, got 7"},
      {"on = \"host9:0\"", {}, "q.toml:4:7: task a: on = 'host9:0': expected a host of the job (box)"},
      {"on = \"model=H100\"", {}, "q.toml:4:6: task a: expected needs that a host can meet ("},
      {"on = \"!0,!1,!2,!3\"", {}, "q.toml:4:6: task a: expected needs that a host can meet ("},
      {"ranks = 8", {}, "q.toml:4:9: task a: expected needs that a host can meet ("},
      {"needs = { gpus = 3 }", {"--gpus", "0-1"}, "q.toml:4:9: task a: expected needs"},
      {"needs = { cpus = 2 }", {"--cpus", "1"}, "q.toml:4:9: task a: expected needs"},
      {"needs = { model = \"h100\" }", {"--gpus", "model=A100"}, "q.toml:4:9: task a: expected needs"},
  };
  for (const Case& one : cases) {
    folder_.write("q.toml", spec(one.line));
    std::vector<std::string> args = {"q.toml", "--inventory", "box.toml"};
    args.insert(args.end(), one.flags.begin(), one.flags.end());
    expect_refused(args, one.error);
    const Ran ran = tasks(args);
    EXPECT_THAT(ran.err, HasSubstr(cat("\n  ", one.line, "\n  "))) << "the line itself";
    EXPECT_THAT(ran.err, HasSubstr("; ")) << "a next step";
  }
  expect_refused({"--inventory", "box.toml", "--sweep", "x=1,2", "--need-gpus", "9", "--", "touch", "began"},
                 "--need-gpus 9: task x=1 and 1 more: expected needs");
}

}  // namespace
}  // namespace muster
