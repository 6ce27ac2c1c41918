// `muster doctor` first gathers facts (doctor_facts.h) and then judges them (doctor_checks.h), so
// that tests can judge any machine.
#include "muster/cli/doctor.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/json_member.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"

namespace muster {

namespace {

constexpr auto kDoctorExamples =
    R"(Each line is a check: ok, warn (works, but expect trouble), fail (a job will fail; exit code 1), or
skipped (does not apply here), what was found, and what to do about it.

Examples:
  muster doctor                            check this machine
  muster doctor --master node1             also the way to the host where ranks are to meet
  muster doctor --python .venv/bin/python  also import that Python's torch
  muster doctor --json                     the same for programs
)";

int64_t count_findings(const NamedResults& results, CheckStatus status) {
  return std::ranges::count(
      results, status, [](const NamedResult& named) { return named.result.status; });
}

// Never shortens the text.
std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

NamedResults run_checks(const DoctorFacts& facts) {
  return mapped(doctor_checks(),
                [&](const Check& check) { return NamedResult{check.name, check.run(facts)}; });
}

// The names stand in a column, and what to do follows what was found.
std::string doctor_text(const NamedResults& results) {
  // The longest status is "skipped".
  constexpr size_t kStatusWidth = 9;
  const size_t width =
      2 + max_of<size_t>(results, [](const NamedResult& named) { return named.name.size(); });
  std::string text;
  for (const auto& [name, result] : results) {
    text += cat(padded(to_string(result.status), kStatusWidth),
                padded(name, width),
                printable(result.text),
                framed("; to do: ", printable(result.fix)),
                "\n");
  }
  return cat(text,
             count_findings(results, kOk),
             " ok, ",
             plural(count_findings(results, kWarn), "warning"),
             ", ",
             plural(count_findings(results, kFail), "failure"),
             ", ",
             count_findings(results, kSkipped),
             " skipped\n");
}

// "ok" is what the exit code says.
std::string doctor_json(const NamedResults& results, const std::string& host) {
  nlohmann::ordered_json document = {{"schema", "muster.doctor/1"},
                                     {"host", host},
                                     {"ok", doctor_exit_code(results) == 0},
                                     {"checks", nlohmann::ordered_json::array()}};
  for (const auto& [name, result] : results) {
    document["checks"].push_back({{"name", name},
                                  {"status", to_string(result.status)},
                                  {"text", result.text},
                                  {"fix", result.fix}});
  }
  return json_text(document, 2) + "\n";
}

int doctor_exit_code(const NamedResults& results) {
  return count_findings(results, kFail) > 0 ? 1 : 0;
}

void add_doctor(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("doctor", "Check this machine for what usually goes wrong");
  struct Flags {
    DoctorOptions options;
    bool json = false;
  };
  // The callback runs after this function has returned.
  const auto flags = std::make_shared<Flags>();
  command->add_flag("--json", flags->json, "Print JSON");
  command
      ->add_option(
          "--master", flags->options.master, "Check the network route to this host [MASTER_ADDR]")
      ->type_name("HOST");
  command
      ->add_option(
          "--python",
          flags->options.python,
          "Ask this Python for its torch, which takes seconds [torch is looked for by its files]")
      ->type_name("PYTHON");
  command->footer(kDoctorExamples);
  command->callback([flags, exit_code] {
    const DoctorFacts facts = look_at_this_machine(flags->options);
    const auto results = run_checks(facts);
    write_all(STDOUT_FILENO,
              flags->json ? doctor_json(results, facts.host.name) : doctor_text(results));
    *exit_code = doctor_exit_code(results);
  });
}

}  // namespace muster
