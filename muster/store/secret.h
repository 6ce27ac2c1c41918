// The job's 256-bit secret: what a process must know to use the job's store. Made by the launcher,
// handed to ranks by an inherited descriptor or a private file; never by argv, never printed, never
// in a core dump.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/fd.h"

namespace muster {

// Opens a file for reading that belongs to this user (or root) and that nobody else may read or
// write (0600 or 0400). For who is not root, a file of root's may be readable by a group too
// (0440), as Kubernetes mounts secrets. Throws: io; failed_precondition naming owner and mode.
Fd open_private_file(const std::string& path);

class Secret {
 public:
  static constexpr size_t kBytes = 32;

  Secret() = default;  // none: a store opened with it is not authenticated

  // A fresh random one. Throws: internal when the system has no randomness.
  static Secret make();

  // From 64 hexadecimal digits, blanks around them ignored. Throws: invalid_argument (without the
  // text).
  static Secret from_hex(std::string_view text);

  // Another secret that only who knows this one can make: HMAC-SHA256 of `purpose`. Throws:
  // failed_precondition when empty.
  Secret derive(std::string_view purpose) const;

  // From a descriptor of a regular file or memfd holding the digits. Its position is neither used
  // nor moved, so that any number of processes may read the one they inherited. Throws: io,
  // invalid_argument.
  static Secret from_fd(int fd);

  // From a private file holding the digits. Throws: as open_private_file, from_hex.
  static Secret from_file(const std::string& path);

  // From MUSTER_SECRET_FD, else MUSTER_SECRET_FILE; nothing when neither is set.
  static std::optional<Secret> from_environment();

  bool empty() const { return page_ == nullptr; }
  std::string_view bytes() const;  // kBytes long, or empty; valid as long as this or a copy lives

  // The digits; the caller wipes them.
  std::string hex() const;

  // Writes the digits, and `rest` behind them; leaves no copy of the digits in memory. Throws: as
  // write_all.
  void write_to(int fd, const std::string& rest = {}, const std::string& path = {}) const;

  // A sealed memfd holding the digits, for MUSTER_SECRET_FD. It is closed on exec: who starts a
  // rank names it among the descriptors that the rank inherits. Throws: failed_precondition when
  // empty, io.
  Fd to_memfd() const;

 private:
  class Page;  // memory kept out of core dumps and wiped at the end
  explicit Secret(std::shared_ptr<const Page> page) : page_(std::move(page)) {}

  std::shared_ptr<const Page> page_;
};

}  // namespace muster
