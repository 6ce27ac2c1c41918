// A page is made of the same texts as --help, in the language of groff's man macros: ".SH" begins a
// section, ".TP" an entry with an indented text, "\fB" and "\fI" choose the font.
#include "muster/cli/manual.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "muster/base/fd.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/named_file.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/usage.h"
#include "muster/base/version.h"

namespace muster {

namespace {

constexpr auto kManualExamples = R"(Examples:
  muster manual run | man -l -           read it
  muster manual --all share/man/man1     every page into this folder (`make install` does)
)";

// Escapes a line so that groff prints it as it is. A point or a quote at its beginning would make
// it a request.
std::string plain(const std::string& text) {
  static const std::map<char, std::string> kEscapes = {{'\\', "\\e"}, {'-', "\\-"}};
  const auto escaped = [](char c) {
    return find_or(kEscapes, c, {c});
  };
  const bool is_request = text.starts_with('.') || text.starts_with('\'');
  return (is_request ? "\\&" : "") + sum_of<std::string>(text, escaped);
}

// Each line is escaped by itself.
std::string lines_of(const std::string& text) {
  return sum_of<std::string>(split(text, '\n'),
                             [](const auto& line) { return plain(line) + "\n"; });
}

// "muster-checkpoint-show", as git names its pages.
std::string page_name(const CommandHelp& command) {
  return join(command.path, "-");
}

// An entry: the flag's names, its value, its help, its variable.
std::string flag_text(const FlagHelp& flag) {
  const auto names =
      mapped(flag.names, [](const auto& name) { return "\\fB" + plain(name) + "\\fR"; });
  auto text = cat(".TP\n", join(names, ", "));
  if (!flag.value.empty())
    text += " \\fI" + plain(flag.value) + "\\fR";
  text += "\n" + lines_of(flag.text);
  if (!flag.variable.empty())
    text += cat("Environment: ", plain(flag.variable), ".\n");
  return text;
}

// An entry: how a command's part is called, and what it does.
std::string command_text(const CommandHelp& part) {
  return cat(".TP\n\\fB", plain(part.name()), "\\fR\n", lines_of(part.text));
}

// A section without entries is left out.
template <class Help>
std::string section(const char* title,
                    const std::vector<Help>& helps,
                    std::string (*entry)(const Help& help)) {
  return framed(cat(".SH ", title, "\n"), sum_of<std::string>(helps, entry));
}

std::string manual_page(const CommandHelp& command) {
  auto page = cat(".TH ",
                  page_name(command),
                  " 1 \"\" \"muster ",
                  version(),
                  "\"\n.SH NAME\n",
                  plain(page_name(command)),
                  " \\- ",
                  plain(command.text),
                  "\n.SH SYNOPSIS\n.B ",
                  plain(join(command.path, " ")),
                  "\n",
                  command.flags.empty() ? "" : "[FLAGS]",
                  command.commands.empty() ? "" : " COMMAND");
  for (const FlagHelp& argument : command.arguments)
    page += " " + plain(argument.names.at(0));
  page += "\n";
  page += section("ARGUMENTS", command.arguments, flag_text);
  page += section("COMMANDS", command.commands, command_text);
  page += section("FLAGS", command.flags, flag_text);
  if (!command.examples.empty())
    page += ".SH NOTES\n.nf\n" + lines_of(command.examples) + ".fi\n";
  return page;
}

// Writes the pages of a command and of its parts.
void write_pages(const CommandHelp& command, const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / (page_name(command) + ".1");
  std::ofstream file(path);
  if (!(file << manual_page(command) << std::flush))
    refuse_named("--all", kWritableFolder, folder.string(), std::strerror(errno));
  for (const CommandHelp& part : command.commands)
    write_pages(part, folder);
}

// Throws: invalid_argument for an unknown command.
const CommandHelp& find_command_help(const CommandHelp& program, const Strings& path) {
  const CommandHelp* found = &program;
  for (const auto& name : path) {
    found = element_with(found->commands, name, &CommandHelp::name);
    if (found == nullptr)
      fail_usage("expected a command, got '", join(path, " "), "'; see muster --help");
  }
  return *found;
}

}  // namespace

// --all writes pages of all commands, so it takes none.
void add_manual(CLI::App& app, CommandHelp (*whole)()) {
  auto* const command =
      app.add_subcommand("manual", "Print a page of the manual, for man")->footer(kManualExamples);
  static Strings path;  // a process parses one command line
  static std::string folder;
  auto* const of = command->add_option(
      "COMMAND",
      path,
      "The command whose page to print, such as run or checkpoint show [muster itself]");
  command->add_option("--all", folder, "Write every page into this folder [none]")
      ->type_name("FOLDER")
      ->excludes(of);
  command->callback([whole] {
    const CommandHelp program = whole();
    if (folder.empty()) {
      write_all(STDOUT_FILENO, manual_page(find_command_help(program, path)));
    } else {
      write_pages(program, folder);
    }
  });
}

}  // namespace muster
