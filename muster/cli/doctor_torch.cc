// The check of the torch that is there. Files tell its version, as to ask a Python takes seconds.
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/fd.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/cli/doctor_checks.h"

namespace muster {

namespace {

// Returns "2.15.0" for "#define TORCH_VERSION_MAJOR 2" and so on.
std::string version_in_header(const std::string& text) {
  Strings numbers;
  for (const char* part : {"MAJOR ", "MINOR ", "PATCH "}) {
    const auto name = cat("#define TORCH_VERSION_", part);
    const size_t at = text.find(name);
    if (at == npos)
      return "";
    const size_t from = at + name.size();
    numbers.emplace_back(trim(text.substr(from, text.find('\n', from) - from)));
  }
  return join(numbers, ".");
}

// Returns the version in a torch folder (a wheel's or a libtorch's), from files alone.
std::string torch_version(const std::string& folder) {
  const auto python = try_read_file(folder + "/version.py").value_or("");
  if (const size_t at = python.find("__version__ = '"); at != npos) {
    const size_t from = at + std::string_view("__version__ = '").size();
    return python.substr(from, python.find('\'', from) - from);
  }
  if (const auto built = try_read_file(folder + "/build-version"))
    return std::string(trim(*built));
  return version_in_header(
      try_read_file(folder + "/include/torch/headeronly/version.h").value_or(""));
}

// Returns where a Python of this prefix would have torch, as in a virtual environment.
Strings torch_folders(const std::string& prefix) {
  Strings folders;
  for (const auto& name : names_in(prefix + "/lib")) {
    if (!name.starts_with("python3"))
      continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      folders.push_back(cat(prefix, "/lib/", name, "/", packages, "/torch"));
    }
  }
  return folders;
}

// Returns the folders where a torch may be, the likeliest first: TORCH (a folder, or a Python), the
// active environment, .deps of the current folder, the Pythons of PATH.
Strings torch_candidates(const DoctorFacts& facts) {
  Strings folders;
  const auto add_prefix = [&](const std::string& prefix) {
    append_all(folders, torch_folders(prefix));
  };
  const auto above = [](const std::string& path) {
    return path.substr(0, path.rfind('/'));
  };
  if (const auto torch = variable(facts, "TORCH")) {
    folders.push_back(*torch);
    add_prefix(above(above(*torch)));  // …/bin/python
  }
  if (const auto active = variable(facts, "VIRTUAL_ENV"))
    add_prefix(*active);
  add_prefix(cat(variable(facts, "PWD").value_or("."), "/.deps/torch"));
  for (const auto& bin : split(variable(facts, "PATH").value_or(""), ':')) {
    if (!bin.ends_with("/bin"))
      continue;
    const std::string prefix = facts.root + above(bin);
    folders.push_back(prefix + "/lib/muster/libtorch/torch");  // as `make install` copies it
    add_prefix(prefix);
  }
  return folders;
}

// muster's C++ part builds with LibTorch 2.11 to 2.15.
bool is_supported(const std::string& version) {
  if (!version.starts_with("2."))
    return false;
  const int64_t minor = parse_int(split(version, '.')[1]).value_or(0);
  return minor >= 11 && minor <= 15;
}

// Other versions may run the launcher, which does not need LibTorch.
CheckResult judge_torch(const std::string& version, const std::string& where) {
  const auto text = cat(version, " (", where, ")");
  if (is_supported(version))
    return {kOk, text};
  return {kWarn,
          text + "; muster's C++ part builds with 2.11 to 2.15",
          "give another with TORCH=, or install one: scripts/setup.sh train"};
}

}  // namespace

// A Python's own answer comes before what files tell.
CheckResult check_torch(const DoctorFacts& facts) {
  if (!facts.python_error.empty()) {
    return {kFail,
            cat(facts.asked_python, ": ", facts.python_error),
            "give a Python that has torch, or install it there"};
  }
  if (!facts.python_answer.empty()) {
    // The answer is the version and the folder.
    const size_t blank = facts.python_answer.find(' ');
    const std::string where =
        blank == npos ? facts.asked_python : facts.python_answer.substr(blank + 1);
    return judge_torch(facts.python_answer.substr(0, blank), where);
  }
  for (const auto& folder : torch_candidates(facts)) {
    const auto version = torch_version(folder);
    if (!version.empty())
      return judge_torch(version, folder);
  }
  return {kSkipped,
          "no LibTorch found by its files (--python PYTHON asks that Python); muster can start "
          "programs without it"};
}

}  // namespace muster
