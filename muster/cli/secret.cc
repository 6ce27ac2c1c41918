// The secret is printed once, and its copy in memory is overwritten.
#include "muster/cli/commands.h"

#include <string>

#include <openssl/crypto.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "muster/base/fd.h"
#include "muster/store/secret.h"

namespace muster {

namespace {

constexpr const char* kSecretExamples = R"(Example, for ranks that are started by hand:
  (umask 077; muster secret > job.secret)
  export MUSTER_SECRET_FILE=$PWD/job.secret
)";

}  // namespace

void add_secret(CLI::App& app, int* exit_code) {
  CLI::App* const command =
      app.add_subcommand("secret", "Print a new secret for a job started by hand");
  command->footer(kSecretExamples);
  command->callback([exit_code] {
    // The line is the only copy as text.
    std::string line = Secret::make().hex() + "\n";
    write_all(STDOUT_FILENO, line);
    OPENSSL_cleanse(line.data(), line.size());
    *exit_code = 0;
  });
}

}  // namespace muster
