// One thread of this process sees other processes end, for all its teams: a process that is watched
// costs one descriptor and no thread, however many teams watch it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "muster/base/fd.h"
#include "muster/base/functions.h"
#include "muster/base/no_copy.h"

namespace muster::shm {

class EndWatch : NoCopy {
 public:
  // Called once, in the watch's thread; it may not call the watch.
  using OnEnd = Callback;
  using Watcher = uint64_t;

  // The watch of this process. It is made for the first who asks, and goes with the last who holds
  // it. A forked child has a copy of its parent's, without the thread: there the copy does nothing,
  // and the child gets its own here. Throws: unavailable when out of descriptors.
  static std::shared_ptr<EndWatch> of_this_process();

  EndWatch();
  ~EndWatch();

  // Calls `on_end` when process `pid` has ended; at once, in this thread, where it has already.
  // Returns nothing where the kernel or a sandbox has no way to watch a process. Throws:
  // unavailable when out of descriptors.
  std::optional<Watcher> watch_process(pid_t pid, OnEnd on_end);

  // Calls `on_end` when the connection has something to read or its other end is gone. `fd` stays
  // the caller's, who keeps it open until forget(). Throws: unavailable when out of memory.
  Watcher watch_connection(int fd, OnEnd on_end);

  // When this returns the watcher's `on_end` does not run and will not.
  void forget(Watcher watcher);

 private:
  struct Source {
    pid_t pid = 0;  // 0: a connection
    Fd process{};
    int fd = -1;  // readable at the end
    std::map<Watcher, OnEnd> watchers{};
  };
  using Sources = std::map<uint64_t, Source>;

  bool is_copy() const;  // in a forked child
  Sources::iterator running_process(pid_t pid);
  void add(Source source, Watcher watcher);
  void drop(Sources::iterator source);
  void run();
  void end(uint64_t number);

  const pid_t owner_;
  Fd events_, stop_;
  std::mutex mutex_;
  uint64_t next_ = 1;  // number of a source or a watcher
  Sources sources_;
  std::thread thread_;
};

}  // namespace muster::shm
