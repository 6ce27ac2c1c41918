// `muster doctor`: checks what usually goes wrong on a machine and says what to do. Registered by
// main.cc.
#pragma once

#include <string>
#include <vector>

#include "muster/cli/doctor_checks.h"

namespace CLI {
class App;
}

namespace muster {

struct NamedResult {
  std::string name;
  CheckResult result;
};

using NamedResults = std::vector<NamedResult>;

// Every check, in the table's order.
NamedResults run_checks(const DoctorFacts& facts);

// A line for each check, and one that counts them.
std::string doctor_text(const NamedResults& results);

// JSON, schema "muster.doctor/1".
std::string doctor_json(const NamedResults& results, const std::string& host);

// 1 if a check fails, otherwise 0: warnings stop no job.
int doctor_exit_code(const NamedResults& results);

// Adds the subcommand to `app`; when it was asked for it prints and sets `*exit_code`. Errors leave
// as Error.
void add_doctor(CLI::App& app, int* exit_code);

}  // namespace muster
