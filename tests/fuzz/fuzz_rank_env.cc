// The variables are lines of NAME=VALUE. They are this process's while the target runs, and those
// of launchers that it had itself are not.
#include <stdlib.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <utility>

#include "muster/base/rank_env.h"
#include "muster/base/rank_env_table.h"
#include "muster/base/strings.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

bool is_of_launcher(const std::string& name) {
  for (const char* prefix : {"OMPI_", "PMI_", "MPI_", "SLURM_", "JOB_COMPLETION"}) {
    if (name.starts_with(prefix))
      return true;
  }
  for (const RankVariable& variable : rank_variables()) {
    if (name == variable.name)
      return true;
  }
  return false;
}

Environment launcher_variables(const std::string& text) {
  Environment variables;
  for (const std::string& line : split(text.substr(0, text.find('\0')), '\n')) {
    const size_t equals = line.find('=');
    if (equals != npos && is_of_launcher(line.substr(0, equals)))
      variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

// The only variables of launchers that this process has, while this lives.
class OnlyVariables {
 public:
  explicit OnlyVariables(Environment variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : own_environment()) {
      if (is_of_launcher(name))
        ::unsetenv(name.c_str());
    }
    for (const auto& [name, value] : variables_)
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  OnlyVariables(const OnlyVariables&) = delete;
  OnlyVariables& operator=(const OnlyVariables&) = delete;
  ~OnlyVariables() {
    for (const auto& [name, value] : variables_)
      ::unsetenv(name.c_str());
  }

 private:
  Environment variables_;
};

void expect(bool holds) {
  if (!holds)
    std::abort();
}

// What the rest of muster takes for granted of a rank.
void check_rank_env(const RankEnv& env) {
  expect(env.rank >= 0 && env.rank < env.world_size);
  const bool is_of_its_host = env.local_rank < env.local_world_size;
  expect(env.local_rank >= 0 && (is_of_its_host || env.local_rank == INT32_MAX));
  expect(env.group_rank >= 0 && env.group_world_size >= 0);
  expect(env.role_rank >= 0 && env.role_world_size >= 0);
  expect(env.master_port >= 0 && env.restart_count >= 0 && env.max_restarts >= 0);
  expect(env.attempt >= 0 && env.secret_fd >= -1);
}

}  // namespace

// What whoever starts a rank tells it, and what a launcher's store tells of the next generation. A
// rank that is started with what was read reads the same.
void fuzz_rank_env(const std::string& text) {
  const Environment told = launcher_variables(text);
  answer_or_error([&] {
    std::optional<RankEnv> env;
    {
      const OnlyVariables only(told);
      env = rank_env_from_environment();
    }
    if (!env)
      return;
    check_rank_env(*env);
    const Environment variables = to_environment(*env);
    const OnlyVariables again(variables);
    const auto read = rank_env_from_environment();
    expect(read.has_value() && to_environment(*read) == variables);
  });
  answer_or_error([&] {
    const RankEnv next = with_generation(RankEnv(), told);
    expect(next.rank >= 0 && next.rank < next.world_size);
  });
  answer_or_error([&] {
    for (const int count : slurm_counts(text).value_or(Ints()))
      expect(count >= 0);
  });
}

}  // namespace muster
