// What a backend does in a child that its process has forked (a data loader's worker): nothing. The threads
// that serve it are not there, and its descriptors and memory are the parent's: ending it would wait for the
// first for ever, and end the parent's watch over the other ranks. So a child keeps it for good.
#pragma once

#include <cstdint>

namespace c10d {
class Backend;
}  // namespace c10d

namespace muster {

// A member of a backend that is held by intrusive_ptr.
class ForkGuard {
 public:
  explicit ForkGuard(c10d::Backend& backend);
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  ~ForkGuard();

  // This is a forked child of the process that made the backend.
  bool in_child() const;
  // Throws: failed_precondition in a child.
  void check(const char* operation) const;

 private:
  c10d::Backend& backend_;
  const uint64_t generation_;
};

}  // namespace muster
