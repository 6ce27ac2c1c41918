// How it works: the file is a mapping, so that what a rank wrote last is there when it is killed.
// It has all of its blocks from the start, and a lock that lasts as long as its process.
#include "muster/trace/activity_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>

#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/base/process_status.h"
#include "muster/base/strings.h"
#include "muster/base/to_underlying.h"
#include "muster/trace/activity.h"
#include "muster/trace/activity_clock.h"
#include "muster/trace/call_text.h"
#include "muster/trace/category.h"
#include "muster/trace/mapped_file.h"

namespace muster {

uint32_t own_thread() {
  return ::syscall(SYS_gettid);
}

// The magic comes last: with it the file is one.
void fill_header(ActivityHeader& header, const ActivityOwner& owner) {
  header.bytes = sizeof(ActivityLayout);
  header.rank = owner.rank;
  header.world_size = owner.world_size;
  header.attempt = owner.attempt;
  header.main_thread = own_thread();
  header.pid = ::getpid();
  header.pid_namespace = static_cast<int64_t>(namespace_inode("pid"));
  header.start_ticks = process_status(::getpid()).start_ticks();
  put_text(header.host, own_host_name().c_str());
  put_text(header.device, owner.device.c_str());
  header.opened_ns = activity_now();
  header.unix_minus_monotonic_ns = nanoseconds_of(CLOCK_REALTIME) - header.opened_ns;
  header.present = present_word(header.opened_ns, to_underlying(Category::other));
  header.loss = std::numeric_limits<double>::quiet_NaN();
  header.version = kActivityVersion;
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header.magic, kActivityMagic, sizeof(kActivityMagic));
}

// The file has all of its blocks, so that a full disk is told here and not by SIGBUS at a write.
Fd open_activity_file(const std::string& path) {
  Fd file = open_mapped_file("activity", path, 0);
  // A file system without locks has none to tell two writers apart.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw failed_precondition(
        "activity: expected '", path, "' for this process alone, got another that writes to it");
  if (const int failed = ::posix_fallocate(file.get(), 0, sizeof(ActivityLayout)); failed != 0)
    fail_errno(
        failed, "activity: cannot make '", path, "' ", sizeof(ActivityLayout), " bytes long");
  return file;
}

}  // namespace muster
