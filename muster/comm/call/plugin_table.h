// A library that libmuster loads gives it a table of functions behind one C symbol. Another version
// of muster has other tables, so the library also says to which version it belongs.
#pragma once

#include <dlfcn.h>

#include <string>

#include "muster/base/error.h"
#include "muster/base/version.h"

namespace muster {

// The symbol by which each of them tells its version.
inline constexpr auto kPluginVersionSymbol = "muster_plugin_version";
using PluginVersionFunction = const char* (*)();

// The table of the library muster_cuda, where `part` is "cuda", which was loaded from `path`.
// Throws: unavailable for another library, and for that of another version.
template <class Table>
const Table& plugin_table(void* library,
                          const std::string& path,
                          const std::string& part,
                          const char* symbol) {
  const auto table = reinterpret_cast<const Table* (*)()>(::dlsym(library, symbol));
  if (table == nullptr)
    throw unavailable(part, ": '", path, "' is no muster_", part, " library");
  const auto its_version =
      reinterpret_cast<PluginVersionFunction>(::dlsym(library, kPluginVersionSymbol));
  const std::string got = its_version == nullptr ? "another version" : its_version();
  if (got == version())
    return *table();
  throw unavailable(part,
                    ": expected the library muster_",
                    part,
                    " of muster ",
                    version(),
                    ", got '",
                    path,
                    "' of ",
                    got,
                    "; install both from one build");
}

}  // namespace muster
