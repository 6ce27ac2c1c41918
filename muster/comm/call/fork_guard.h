// A backend does nothing in a child that its process has forked (a data loader's, for instance).
// The threads that serve it are not there, and its descriptors and memory are the parent's: ending
// it would wait for the threads for ever, and end the parent's watch over the other ranks. So a
// child keeps it for good.
#pragma once

#include <cstdint>

#include "muster/base/no_copy.h"

namespace c10d {
class Backend;
}  // namespace c10d

namespace muster {

// Tells the process that made it from those that it has forked since.
class ForkMark {
 public:
  ForkMark();

  // Whether this is a forked child of the process that made it.
  bool in_child() const;
  // Throws: failed_precondition in a child.
  void check(const char* operation) const;

 private:
  uint64_t forks_;
};

// A member of a backend that is held by intrusive_ptr.
class ForkGuard : NoCopy {
 public:
  explicit ForkGuard(c10d::Backend& backend);
  ~ForkGuard();

  bool in_child() const { return mark_.in_child(); }
  void check(const char* operation) const { mark_.check(operation); }

 private:
  const ForkMark mark_;
  c10d::Backend& backend_;
};

}  // namespace muster
