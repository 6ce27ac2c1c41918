// The `muster` program. To add a subcommand, write add_<name>(CLI::App&), if need be with
// int* exit_code, in a file of its own, declare it in commands.h and name it in kCommands. Only the
// command that the first argument names is built, since a launcher must be up in milliseconds; help
// of muster itself builds all of them.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_words.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/nearest.h"
#include "muster/base/patient_write.h"
#include "muster/base/shortage.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/version.h"
#include "muster/cli/command_help.h"
#include "muster/cli/commands.h"
#include "muster/cli/completion.h"
#include "muster/cli/doctor.h"
#include "muster/cli/end_with.h"
#include "muster/cli/manual.h"
#include "muster/cli/unknown_flag.h"
#include "muster/cli/value_flags.h"
#include "muster/launch/launch.h"
#include "muster/launch/shortage_note.h"
#include "muster/supervise/first_process.h"

namespace muster {

namespace {

// Exit codes of muster itself; a job's are those of its ranks.
constexpr int kOtherError = 1;
constexpr int kUsageError = 2;

// `add` may take a program's arguments off `args`, which follow the command's name.
struct Command {
  const char* name;
  void (*add)(CLI::App& app, Strings& args, int* exit_code);
};

CommandHelp whole_program();

// Most commands leave all arguments to CLI11. They take what they have use for.
template <auto add_command>
void add(CLI::App& app, Strings&, int* exit_code) {
  if constexpr (requires { add_command(app); })
    add_command(app);
  else if constexpr (requires { add_command(app, exit_code); })
    add_command(app, exit_code);
  else
    add_command(app, whole_program);
}

constexpr Command kCommands[] = {
    {"run", add_run},
    {"plan", add_plan},
    {"devices", add<add_devices>},
    {"tasks", add_tasks},
    {"bench", add<add_bench>},
    {"checkpoint", add<add_checkpoint>},
    {"top", add<add_top>},
    {"report", add<add_report>},
    {"ps", add<add_ps>},
    {"stop", add<add_stop>},
    {"agent", add<add_agent>},
    {"doctor", add<add_doctor>},
    {"secret", add<add_secret>},
    {"completion", add<add_completion>},
    {"manual", add<add_manual>},
};

constexpr auto kExamples = R"(Examples:
  muster run ./train --epochs 3     start ./train once per device of this machine
  muster run --gpus 0,2 train.py    a Python script, on two chosen GPUs
  muster plan                       which rank would get which device, and why
  muster tasks sweep.toml           many commands on this machine's GPUs and CPUs
  muster devices                    what this machine has
  muster bench device               how fast its devices train
  muster checkpoint ls runs/latest  what a run has saved
  muster top                        what each rank of your running job does now
  muster report                     the newest run as a page: curves, attempts, placement
  muster ps                         your running jobs; muster stop ends them
  muster doctor                     what is wrong with this machine, and what to do
`muster help COMMAND` tells more.
)";

// Sets what help of muster itself shows.
void set_up(CLI::App& app) {
  app.name("muster");
  app.description(
      "Puts every rank of a job on the right device, starts the ranks and guards them.");
  app.set_version_flag("--version", std::string("muster ") + version());
  app.footer(kExamples);
  app.require_subcommand(1);
}

// Describes muster with all of its commands.
CommandHelp whole_program() {
  CLI::App app;
  set_up(app);
  Strings none;
  int unused = 0;
  for (const Command& command : kCommands)
    command.add(app, none, &unused);
  say_exit_codes(app);
  return describe_command(app);
}

// `muster help checkpoint show` is `muster checkpoint show --help`. What follows the command's name
// is left out: it may be a program, which would start.
Strings asked_for_help(const Strings& words) {
  Strings args(words.begin(), words.begin() + (words.empty() ? 0 : 1));
  const CommandHelp program = whole_program();
  const std::vector<CommandHelp>* commands = &program.commands;
  for (const size_t i : indices_of(words)) {
    const auto found = std::ranges::find(*commands, words[i], &CommandHelp::name);
    if (found == commands->end())
      break;
    if (i > 0)
      args.push_back(words[i]);
    commands = &found->commands;
  }
  args.emplace_back("--help");
  return args;
}

// Standard error may be a pipe that nobody reads any more, so the write has a time limit.
int complain(const std::string& who, const std::string& text, int exit_code) {
  write_within(STDERR_FILENO, who + ": " + printable_lines(text) + "\n", kReaderPatience);
  return exit_code;
}

// Returns the names that a person types: agents are started by muster itself.
StringViews command_names() {
  auto names = mapped_to<StringViews>(kCommands, &Command::name);
  std::erase(names, "agent");
  return names;
}

std::string command_list() {
  return join(command_names(), ", ");
}

// Complains of a first argument that is no command, which is often a program to start.
int unknown_command(const std::string& name) {
  const auto suggestion = did_you_mean(name, command_names());
  std::string next = suggestion.empty() ? "see muster help" : suggestion.substr(2);
  if (contains(name, '/') || name.ends_with(".py"))
    next = "to start it: muster run " + name;
  return complain(
      "muster",
      "expected a command (" + command_list() + "), got '" + printable(name) + "'; " + next,
      kUsageError);
}

// Returns CLI11's message with what was expected. For a text that is no number it says only "Could
// not convert: --flag = text".
std::string name_the_rule(const CLI::App& app, const std::string& text) {
  constexpr std::string_view kStart = "Could not convert: ";
  const size_t equals = text.find(" = ");
  if (!text.starts_with(kStart) || equals == npos)
    return text;
  const auto name = text.substr(kStart.size(), equals - kStart.size());
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty())
    command = command->get_subcommands().front();
  const CLI::Option* option = command->get_option_no_throw(name);
  std::string rule = "a number";
  if (option != nullptr && !option->get_type_name().empty())
    rule = option->get_type_name() + ", " + rule;
  const bool is_flag = option != nullptr && option->get_items_expected_max() == 0;
  if (is_flag && option->get_fnames().empty())
    rule = "true or false";  // a flag's variable
  return name + ": expected " + rule + ", got '" + text.substr(equals + 3) + "'";
}

// Returns the message with the limit that a user can raise. A thread that cannot be made is told as
// "Resource temporarily unavailable" alone, also where there is no room for its stack.
std::string name_the_limit(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again)
    return error.what();
  return cat("expected one more thread, got: ",
             error.what(),
             "; raise the limit of processes (ulimit -u, or pids.max of the control group) "
             "or of memory (ulimit -v)");
}

constexpr auto kNoMemory =
    "expected more memory, got none; raise the limit of memory (ulimit -v, or memory.max of the "
    "control group), or ask for less";

// Opens descriptors 0, 1 and 2 if they are closed: the next file to be opened would otherwise
// become standard output.
void ensure_standard_streams() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2)
    fd = ::open("/dev/null", O_RDWR);
  if (fd > 2)
    ::close(fd);
}

// Ends by SIGPIPE, as a program does that does not ignore the signal: `muster top | head` behaves
// as `ls | head`. It returns only in a container's first process, which its own signals do not end.
int end_without_reader() {
  ::signal(SIGPIPE, SIG_DFL);
  ::raise(SIGPIPE);
  return 128 + SIGPIPE;
}

// The program that has started this one may wait for more of what is short: threads are short where
// processes are. Descriptors are each process's own, so that no other's end gives this one any.
int complain_of_shortage(const std::string& who, const std::string& text, int reason) {
  if (is_shortage(reason) && reason != EMFILE)
    leave_shortage_note(text);
  return complain(who, text, kOtherError);
}

// Prints what --help and --version ask for as all else is printed: what does not come out is said.
void parse_or_show(CLI::App& app, Strings args) {
  try {
    app.parse(std::move(args));
  } catch (const CLI::Success& asked_for_text) {
    std::ostringstream text;
    app.exit(asked_for_text, text, text);
    write_all(STDOUT_FILENO, text.str());
  }
}

// Adds the commands to `app` and does what `args` say: those that follow the name of a single
// command, or all of several. Returns the exit code.
int parse_and_run(CLI::App& app,
                  std::span<const Command> commands,
                  Strings args,
                  const std::string& who) {
  try {
    take_shortage_note();
    end_with_parent();
    int exit_code = 0;
    for (const Command& command : commands)
      command.add(app, args, &exit_code);
    say_exit_codes(app);
    refuse_empty_values(app);
    if (commands.size() == 1)
      args.insert(args.begin(), commands.front().name);
    // CLI11 takes the arguments from the back.
    parse_or_show(app, Strings(args.rbegin(), args.rend()));
    return exit_code;
  } catch (const CLI::ParseError& error) {
    // muster's own messages name what was probably meant.
    const auto unknown = text_or(unknown_flag(app), unknown_subcommand(app));
    const std::string wrong = name_the_rule(app, error.what()) + "; see " + who + " --help";
    return complain(who, text_or(unknown, wrong), kUsageError);
  } catch (const ReaderGone&) {
    return end_without_reader();
  } catch (const Shortage& error) {
    return complain_of_shortage(who, error.what(), error.reason());
  } catch (const Error& error) {
    return complain(who, error.what(), exit_code_of(error));
  } catch (const std::system_error& error) {
    return complain_of_shortage(who, name_the_limit(error), error.code().value());
  } catch (const std::bad_alloc&) {
    return complain_of_shortage(who, kNoMemory, ENOMEM);
  } catch (const std::exception& error) {
    return complain(who, json_words(error.what()), kOtherError);
  }
}

// Returns the exit code.
int run_muster(int argc, char** argv) {
  ensure_standard_streams();
  let_signals_end_first_process();
  ::signal(SIGPIPE, SIG_IGN);  // a reader that is gone must not cost the exit code and the report
  ::signal(SIGXFSZ, SIG_IGN);  // nor must a file that may grow no further
  Strings args(argv + 1, argv + argc);
  CLI::App app;
  set_up(app);
  if (!args.empty() && args[0] == "help")
    args = asked_for_help({args.begin() + 1, args.end()});
  if (args.empty()) {
    return complain("muster",
                    "expected a command (" + command_list() + "), got none; see muster help",
                    kUsageError);
  }
  if (args[0].starts_with('-'))
    return parse_and_run(app, kCommands, args, "muster");
  const std::string name = args.front();
  args.erase(args.begin());
  const Command* const command = element_with(kCommands, name, &Command::name);
  if (command == nullptr)
    return unknown_command(name);
  return parse_and_run(app, {command, 1}, args, "muster " + name);
}

}  // namespace

}  // namespace muster

int main(int argc, char** argv) {
  return muster::run_muster(argc, argv);
}
