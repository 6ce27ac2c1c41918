// Finds what is installed beside a library of this process.
#pragma once

#include <dlfcn.h>

#include <string>

namespace muster {

// The folder of the library that has the function, with its slash; "" where that is not known.
template <class Function>
std::string folder_of_library_with(Function* function) {
  Dl_info found{};
  ::dladdr(reinterpret_cast<void*>(function), &found);
  const std::string library = found.dli_fname != nullptr ? found.dli_fname : "";
  return library.substr(0, library.find_last_of('/') + 1);
}

}  // namespace muster
