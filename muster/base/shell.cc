// How it works: popen() runs the command, after lines that export the variables. More output than
// is wanted is read and dropped, so that the command does not end by SIGPIPE.
#include "muster/base/shell.h"

#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster {

std::string output_of_shell(const std::string& command,
                            const std::string& what,
                            const Strings& variables) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  std::string told;
  for (const auto& variable : variables)
    told += cat("export ", shell_quoted(variable), "\n");
  FILE* const pipe = ::popen(cat(told, command).c_str(), "re");
  if (pipe == nullptr)
    fail_errno(errno, what, ": cannot start '", command, "'");
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    if (text.size() < kMaxBytes)
      text.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  if (status == 0)
    return text;
  const int exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const std::string got = exit_code < 0 ? "a signal" : cat("exit code ", exit_code);
  throw ShellFailed(exit_code,
                    cat(what, ": expected '", printable(command), "' to succeed, got ", got));
}

// A quote ends the quoted part, stands alone behind a backslash, and begins the next part.
std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text)
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string shell_command(const Strings& words) {
  constexpr auto kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  Strings quoted;
  for (const auto& word : words) {
    // A first word with '=' would set a variable.
    const bool is_assignment = quoted.empty() && contains(word, '=');
    const bool has_plain_letters = !word.empty() && word.find_first_not_of(kPlain) == npos;
    const bool is_plain = has_plain_letters && !is_assignment;
    quoted.push_back(is_plain ? word : shell_quoted(word));
  }
  return join(quoted, " ");
}

std::string advice_for_shell(int exit_code) {
  constexpr std::pair<int, const char*> kAdvice[] = {
      {126, "muster cannot be executed there (--remote-muster PATH names another), or the program"},
      {127,
       "muster is not at that path there (--remote-muster PATH names it), or the program is "
       "missing"}};
  return lookup(kAdvice, exit_code, "");
}

}  // namespace muster
