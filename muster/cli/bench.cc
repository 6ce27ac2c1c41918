// muster itself has no LibTorch, so that it starts quickly. Measurements that need it are another
// program, which takes this process's place.
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>

#include "muster/base/error.h"
#include "muster/base/mapped.h"
#include "muster/base/own_program.h"
#include "muster/base/strings.h"
#include "muster/supervise/child.h"

namespace muster {

namespace {

// The path from bin/muster is the same where both are installed and in a build folder.
std::string bench_program() {
  const std::filesystem::path self = own_program();
  if (!self.is_absolute())
    throw unavailable("bench: expected /proc to name this program");
  return self.parent_path().parent_path() / "libexec" / "muster" / "muster-bench";
}

// Returns only by an exception: after execv() this process is muster-bench.
void become_bench(const Strings& args) {
  const auto program = bench_program();
  Strings words = {"muster bench"};
  append_all(words, args);
  ::execv(program.c_str(), exec_pointers(words).data());
  throw unavailable(
      "bench: expected '",
      program,
      "', got: ",
      std::strerror(errno),
      "; `make install` installs it, packages and wheels do not have it; in a checkout, "
      "`cmake --build BUILD --target muster_bench` builds it (with LibTorch)");
}

}  // namespace

// CLI11 hands on all arguments as they are.
void add_bench(CLI::App& app) {
  auto* const command =
      app.add_subcommand("bench", "Measure devices, collectives and training steps");
  command->set_help_flag();  // muster-bench has its own
  command->prefix_command();
  command->callback([command] { become_bench(command->remaining()); });
}

}  // namespace muster
