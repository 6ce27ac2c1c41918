#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "muster/base/strings.h"
#include "muster/launch/exit_report.h"
#include "muster/launch/rank_exit.h"
#include "muster/tasks/hosts/last_json_line.h"
#include "muster/tasks/report/columns.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/scratch_file.h"

namespace muster {

namespace {

bool is_json(const std::string& text) {
  return !nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false).is_discarded();
}

// A rank that ended with this error, and what people and programs are told of it.
void check_error(const std::string& text) {
  const ScratchFile file(text);
  const auto error = read_error_file(file.path());
  if (!error)
    return;
  std::vector<RankExit> exits = {{.rank = 0, .started = true, .exit_code = 1},
                                 {.rank = 1, .started = true, .exit_code = 1}};
  exits[0].message = error->message;
  exits[0].stack = error->stack;
  exits[0].facts = error->facts;
  exits[0].last_lines = {text};
  failure_card(exits, {.run_id = "fuzz", .run_dir = "/folder"});
  if (!is_json(failure_json(exits, {.run_id = "fuzz", .run_dir = {}})))
    std::abort();
}

// The result among the lines that a task has printed.
void check_result(const std::string& text) {
  const std::string line = last_json_line_of(text);
  if (line.empty())
    return;
  if (!is_json(line))
    std::abort();
  not_finite_field(line, {{"lr", "NaN"}});
  for (const auto& [name, value] : fields_of(line))
    parse_as<double>(value);
}

}  // namespace

// What programs of users leave: a rank's error file, and the last lines of a task.
void fuzz_errors(const std::string& text) {
  answer_or_error([&] { check_error(text); });
  answer_or_error([&] { check_result(text); });
}

}  // namespace muster
