// An owned file descriptor, and the few whole-file operations that everybody needs.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "muster/base/error.h"

namespace muster {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other)
      reset(std::exchange(other.fd_, -1));
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end;
  Fd write_end;
};

// Both ends are closed on exec. `flags` are pipe2's others, such as O_NONBLOCK. Throws: io, naming
// the caller's place.
Pipe open_pipe(int flags = 0, std::source_location where = std::source_location::current());

// Nobody reads our standard output any more, as in `muster top | head`: what is printed has an end
// there.
struct ReaderGone : Error {
  ReaderGone();
};

// Opens the file, closed on exec. `failing` begins the error, which names the caller's place.
// Throws: io, "cannot open 'PATH': …".
Fd open_path(const std::string& path,
             int flags,
             const char* failing = "cannot open",
             mode_t mode = 0,
             std::source_location where = std::source_location::current());

// Writes all of `bytes`, whatever the number of calls it takes. Throws: ReaderGone of standard
// output; io, naming the path; where none is told,
// the one that the kernel knows.
void write_all(int fd, const std::string& bytes, const std::string& path = {});

// Appends all of `bytes` to a file that this process alone writes, or nothing. Throws: io naming
// the path.
void append_whole(int fd, const std::string& bytes, const std::string& path);

// The whole file; of one with more than `most` bytes, and be it endless, one byte more.
// Throws: io naming the path, and the caller's place.
std::string read_file(const std::string& path,
                      size_t most = SIZE_MAX,
                      std::source_location where = std::source_location::current());

// The file as read_file has it; nothing when it cannot be read.
std::optional<std::string> try_read_file(const std::string& path, size_t most = SIZE_MAX);

// The last bytes of a file, at most `most`; empty when it cannot be read.
std::string tail_of_file(int fd, off_t most);
// A file that a person names is small: at most 64 MiB. Throws: as read_file; invalid_argument for a
// longer one.
std::string read_small_file(const std::string& path,
                            std::source_location where = std::source_location::current());

// Opens a file of a folder that others may have written to. Never waits, as it would for the other
// end of a pipe of that name. Throws: io, with `who` before the message, also for a pipe, a device
// and a folder; it names the caller's place.
Fd open_plain_file(const std::string& path,
                   const std::string& who = {},
                   std::source_location where = std::source_location::current());

// read_file and read_small_file, for a file that open_plain_file opens.
std::string read_plain_file(const std::string& path,
                            size_t most = SIZE_MAX,
                            std::source_location where = std::source_location::current());
std::string read_small_plain_file(const std::string& path,
                                  std::source_location where = std::source_location::current());

// Another name in the folder of `path`, for what will be renamed to it. Random: processes of other
// hosts and containers, which have the same process ids, may share the folder. Throws: io.
std::string name_aside(const std::string& path);

// Writes a new file with a name from name_aside, or none. Throws: io naming `path`, whose file it
// is to be.
void write_aside(const std::string& aside, const std::string& path, const std::string& bytes);

// Gives a file from name_aside its name; where it cannot get that, it is removed. Throws: io.
void rename_aside(const std::string& aside, const std::string& path);

// The same where no file has that name yet. Returns 0, EEXIST or another errno. The name aside may
// stay, too: some file systems know no better than a second name.
int rename_if_new(const std::string& aside, const std::string& path);

// Whether the path names this file still. A link does not.
bool is_at(const Fd& file, const std::string& path);

// Writes `bytes` to `path` aside, then renames: a reader sees the old file or the new one. Throws:
// io naming the path.
void write_file(const std::string& path, const std::string& bytes);

}  // namespace muster
