// The file becomes arguments, as if they had been typed before the others. CLI11 then checks them
// as it checks typed ones; errors of the file itself name its line and column.
#include "muster/cli/config_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/mapped.h"
#include "muster/base/text_of.h"
#include "muster/base/toml_text.h"
#include "muster/base/usage.h"
#include "muster/cli/unknown_flag.h"

namespace muster {

namespace {

constexpr auto kConfigFlag = "--config";
// A key in an error is cut, since a file that is no TOML may have a long one.
constexpr size_t kMaxShownKey = 60;
// A larger file was named by mistake.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

// Reads one file for one command, whose flags are known from CLI11's options.
class ConfigReader {
 public:
  ConfigReader(const CLI::App& command, const std::string& path) : command_(command), path_(path) {}

  Strings read() {
    const std::string text =
        read_named("--config", [&] { return read_file(path_, kMaxConfigBytes); });
    if (text.size() > kMaxConfigBytes)
      fail({1, 1}, "at most 1 MiB", "more");
    for (const auto& [key, value] : parse(text))
      take(key, value);
    return std::move(args_);
  }

 private:
  // Keys and values of the file are part of the message, so it is made printable.
  [[noreturn]] void fail(toml::source_position at,
                         const std::string& expected,
                         const std::string& got) const {
    throw invalid_argument(printable(cat("--config ",
                                         path_,
                                         ": expected ",
                                         expected,
                                         ", got ",
                                         got,
                                         " (line ",
                                         at.line,
                                         ", column ",
                                         at.column,
                                         ")")));
  }

  // The parser's own words become an error like the others.
  toml::table parse(const std::string& text) const {
    try {
      return parse_toml(text);
    } catch (const TomlError& error) {
      fail({static_cast<toml::source_index>(error.line),
            static_cast<toml::source_index>(error.column)},
           error.expected,
           error.got);
    }
  }

  // The option of a key. A table that is no flag's is a header, as [run].
  const CLI::Option& option_of(const toml::key& key,
                               const std::string& flag,
                               const toml::node& value) const {
    const bool is_for_command_line = is_one_of(flag, kConfigFlag, "--help");
    const CLI::Option* option = is_for_command_line ? nullptr : command_.get_option_no_throw(flag);
    if (option != nullptr)
      return *option;
    const auto at = key.source().begin;
    const auto shown = in_quotes(key.str().substr(0, kMaxShownKey));
    if (value.is_table() || value.is_array_of_tables())
      fail(at, "the keys at the top of the file, in no table but [env]", cat("the table ", shown));
    fail(at,
         cat("a flag of muster ", command_.get_name()),
         cat(shown, suggested_flag(command_, flag)));
  }

  // Turns one entry into arguments. A flag without a value takes true or false; false leaves it
  // out.
  void take(const toml::key& key, const toml::node& value) {
    const auto at = key.source().begin;
    auto flag = cat("--", key.str());
    std::ranges::replace(flag, '_', '-');
    const CLI::Option& option = option_of(key, flag, value);
    if (!given_.insert(&option).second)
      fail(at, cat(flag, " once"), cat("'", key.str(), "' for it again"));
    // A flag that stands alone may have another value than its own, as --trace=operators.
    const bool takes_value = option.get_items_expected_max() > 0 || !option.get_fnames().empty();
    const bool is_repeated = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    if (const auto on = value.value_exact<bool>()) {
      // true and false stand for the flag alone, and only some flags may lack their value.
      if (takes_value && option.get_items_expected_min() > 0)
        fail(at, cat("a value of ", flag), *on ? "true" : "false");
      if (*on)
        args_.push_back(flag);
    } else if (!takes_value) {
      fail(at, cat("true or false for ", flag), "a value");
    } else if (const toml::table* const table = value.as_table()) {
      take_settings(flag, at, *table);
    } else if (is_repeated && value.is_array()) {
      for (const toml::node& piece : *value.as_array())
        add(option, flag, scalar_text(flag, piece));
    } else {
      add(option, flag, text_of(flag, value));
    }
  }

  // A table becomes NAME=VALUE pairs, which only --env takes.
  void take_settings(const std::string& flag, toml::source_position at, const toml::table& table) {
    if (flag != "--env")
      fail(at, cat("a value of ", flag), "a table");
    for (const auto& [name, value] : table) {
      args_.push_back(flag);
      args_.push_back(cat(name.str(), "=", scalar_text(flag, value)));
    }
  }

  // The value is an argument of its own, since CLI11 takes "--flag=" for a flag whose value
  // follows. A flag whose value may be left out takes it only as --flag=value.
  void add(const CLI::Option& option, const std::string& flag, const std::string& value) {
    if (option.get_items_expected_min() == 0) {
      args_.push_back(cat(flag, "=", value));
    } else {
      args_.push_back(flag);
      args_.push_back(value);
    }
  }

  // An array is joined by commas, as lists are typed.
  std::string text_of(const std::string& flag, const toml::node& value) const {
    if (const toml::array* const list = value.as_array()) {
      return join(mapped(*list, [&](const toml::node& piece) { return scalar_text(flag, piece); }),
                  ",");
    }
    return scalar_text(flag, value);
  }

  // A number keeps all of its digits. JSON has neither nan nor inf. Texts become arguments and
  // variables, which end at a NUL.
  std::string scalar_text(const std::string& flag, const toml::node& value) const {
    if (const auto text = value.value_exact<std::string>()) {
      if (contains(*text, '\0'))
        fail(value.source().begin, cat("a text without NUL for ", flag), in_quotes(*text));
      return *text;
    }
    if (const auto number = value.value_exact<int64_t>())
      return cat(*number);
    if (const auto number = value.value_exact<double>())
      return std::isfinite(*number) ? nlohmann::json(*number).dump() : cat(*number);
    fail(value.source().begin,
         cat("a text or a number for ", flag),
         value.is_array() ? "a list" : "something else");
  }

  const CLI::App& command_;
  const std::string& path_;
  Strings args_;
  std::set<const CLI::Option*> given_;
};

}  // namespace

Strings config_arguments(const CLI::App& command, const std::string& path) {
  return ConfigReader(command, path).read();
}

// Of several files a later one wins, as of other flags the last does, and what is typed wins over
// all.
Strings use_config_file(const CLI::App& command, Strings& args) {
  Strings flags, files;
  for (ptrdiff_t i = 0; i < std::ssize(args);) {
    const std::string arg = args[i];
    const bool apart = arg == kConfigFlag && i + 1 < std::ssize(args);
    if (!apart && !arg.starts_with(cat(kConfigFlag, "="))) {
      ++i;
      continue;
    }
    const std::string path = apart ? args[i + 1] : arg.substr(arg.find('=') + 1);
    if (path.empty())
      throw invalid_argument("--config: expected a file, got ''");
    args.erase(args.begin() + i, args.begin() + i + (apart ? 2 : 1));
    std::ranges::move(config_arguments(command, path), std::back_inserter(flags));
    files.push_back(path);
  }
  args.insert(args.begin(), flags.begin(), flags.end());
  return files;
}

}  // namespace muster
