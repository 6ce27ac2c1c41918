// The secret is printed once, and its digits are wiped.
#include "muster/cli/commands.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "muster/store/secret.h"

namespace muster {

namespace {

constexpr auto kSecretExamples = R"(Example, for ranks that are started by hand:
  (umask 077; muster secret > job.secret)
  export MUSTER_SECRET_FILE=$PWD/job.secret
)";

}  // namespace

void add_secret(CLI::App& app) {
  auto* const command = app.add_subcommand("secret", "Print a new secret for a job started by hand")
                            ->footer(kSecretExamples);
  command->callback([] { Secret::make().write_to(STDOUT_FILENO, "\n"); });
}

}  // namespace muster
