// How it works: the C++ library reads mangled names, and addr2line a program's tables of symbols
// and lines, in a process that is killed where it takes too long.
#include "muster/base/symbols.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/shell.h"
#include "muster/base/strings.h"

namespace muster {

std::string demangled(const char* symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : symbol;
}

bool is_way_to_function(const std::string& function) {
  constexpr const char* kParts[] = {"std::__invoke_impl<",
                                    "::type std::__invoke",
                                    "std::_Function_handler<",
                                    "std::thread::_Invoker<",
                                    "std::thread::_State_impl<"};
  return any_of(kParts, [&](const char* part) { return has_text(function, part); });
}

Strings addr2line(const std::string& file, const std::string& offsets) {
  const auto command =
      cat("timeout -s KILL 5 addr2line -Cfe ", shell_quoted(file), offsets, " 2>/dev/null");
  try {
    return split(output_of_shell(command, "stack"), '\n');
  } catch (const Error&) {
    return {};
  }
}

}  // namespace muster
