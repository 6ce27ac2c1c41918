// How it works: the file is read three times. A record counts if its number is the same, at both of
// its ends, in all three copies: then nobody wrote to it from before the second until after it,
// whatever the order in which a copy goes through memory. A record that has changed is read again
// in the same way, alone, which takes a microsecond and not the hundred of the whole file.
#include "muster/trace/steady_copy.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/trace/activity_layout.h"
#include "muster/trace/activity_times.h"

namespace muster {

namespace {

constexpr size_t kActivityBytes = sizeof(ActivityLayout);
constexpr int kLooksAtOnce = 20;  // at a record that changes

// The writer of a record may have lost its processor in the middle of it. So it gets some time, in
// all for a file, as the writer may also have ended there.
constexpr int kNaps = 20;
constexpr std::chrono::microseconds kNap{200};

// Of a record; nothing while it is being written.
template <class Record>
std::optional<uint64_t> number_at(const std::string& bytes, size_t offset) {
  Record record;
  std::memcpy(&record, bytes.data() + offset, sizeof(record));
  return record.head == record.tail ? std::optional(record.head) : std::nullopt;
}

class SteadyCopy {
 public:
  explicit SteadyCopy(const std::string& path) : path_(path), file_(open_plain_file(path)) {}

  std::string take() {
    Copies copies = read_three_times(0, kActivityBytes + 1);
    const bool are_whole =
        all_of(copies, [](const auto& copy) { return copy.size() == kActivityBytes; });
    if (!are_whole)
      return std::move(copies[1]);
    for (size_t i = 0; i < kActivityThreads; ++i)
      settle<ActivityThread>(copies,
                             offsetof(ActivityLayout, threads) + i * sizeof(ActivityThread));
    for (size_t i = 0; i < kActivityCalls; ++i)
      settle<ActivityCall>(copies, offsetof(ActivityLayout, ring) + i * sizeof(ActivityCall));
    settle_times(copies[1]);
    return std::move(copies[1]);
  }

 private:
  using Copies = std::array<std::string, 3>;

  // The fence keeps the next copy's loads behind this one's, as the kernel does not.
  std::string read(size_t offset, size_t bytes) const {
    std::string part(bytes, '\0');
    size_t got = 0;
    while (got < bytes) {
      const ssize_t more = ::pread(file_.get(), part.data() + got, bytes - got, offset + got);
      if (more < 0 && errno == EINTR)
        continue;
      if (more < 0)
        fail_errno(errno, "cannot read '", path_, "'");
      if (more == 0)
        break;
      got += more;
    }
    part.resize(got);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return part;
  }

  Copies read_three_times(size_t offset, size_t bytes) const {
    Copies copies;
    for (std::string& copy : copies)
      copy = read(offset, bytes);
    return copies;
  }

  template <class Record>
  static bool is_steady(const Copies& copies, size_t offset) {
    const auto number = number_at<Record>(copies[1], offset);
    return number && number == number_at<Record>(copies[0], offset) &&
           number == number_at<Record>(copies[2], offset);
  }

  // Leaves the record whole, or zero, in the second copy.
  template <class Record>
  void settle(Copies& copies, size_t offset) {
    if (is_steady<Record>(copies, offset))
      return;
    for (int look = 0; look < kLooksAtOnce || nap(); ++look) {
      const Copies again = read_three_times(offset, sizeof(Record));
      const bool are_whole =
          all_of(again, [](const auto& copy) { return copy.size() == sizeof(Record); });
      if (are_whole && is_steady<Record>(again, 0)) {
        copies[1].replace(offset, sizeof(Record), again[1]);
        return;
      }
    }
    copies[1].replace(offset, sizeof(Record), sizeof(Record), '\0');
  }

  // False where there was enough of it.
  bool nap() {
    if (naps_ == kNaps)
      return false;
    ++naps_;
    std::this_thread::sleep_for(kNap);
    return true;
  }

  // The header's other fields stand alone, and are as good from a later copy.
  void settle_times(std::string& bytes) const {
    ActivityHeader header;
    for (int look = 0; look < kLooksAtOnce; ++look) {
      std::memcpy(&header, bytes.data(), sizeof(header));
      if (ActivityTimes::in(header).is_of_one_moment)
        return;
      const std::string again = read(0, sizeof(header));
      bytes.replace(0, again.size(), again);
    }
  }

  const std::string& path_;
  const Fd file_;
  int naps_ = 0;
};

}  // namespace

std::string steady_copy(const std::string& path) {
  return SteadyCopy(path).take();
}

}  // namespace muster
