// A library that is loaded when its functions are first wanted (dlopen), since loading it costs
// time and a machine may lack it. For those who call hwloc, libarchive or libcurl.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

class LoadedLibrary {
 public:
  // For errors: `expected` is "tar: expected libarchive.so.13 to read shards", `next_step` "install
  // libarchive". The library stays until the end of the process. Throws: unavailable.
  LoadedLibrary(const std::string& name, std::string expected, std::string next_step)
      : library_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)),
        expected_(std::move(expected)),
        next_step_(std::move(next_step)) {
    if (library_ != nullptr)
      return;
    // The loader says what is missing: the library itself, or one that it needs.
    const char* const reason = ::dlerror();
    fail(reason != nullptr ? reason : "unknown reason");
  }

  // An address has no type: the pointer that it becomes decides how the function is called.
  struct Address {
    void* address;
    template <class Function>
    operator Function*() const {  // NOLINT(google-explicit-constructor)
      return reinterpret_cast<Function*>(address);
    }
  };

  // Throws: unavailable if the library has no such function.
  Address find(const char* function) const {
    void* const address = ::dlsym(library_, function);
    if (address == nullptr)
      fail(cat("no function ", function));
    return {address};
  }

  // Throws: unavailable.
  [[noreturn]] void fail(const std::string& reason) const {
    throw unavailable(expected_, ", got: ", reason, "; ", next_step_);
  }

 private:
  void* library_;
  std::string expected_;
  std::string next_step_;
};

}  // namespace muster
