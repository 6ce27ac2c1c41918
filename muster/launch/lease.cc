// Each GPU has a file of the runtime folder, and each unit of the GPU one byte of it: a lease is a
// lock of the kernel on those bytes. It belongs to the open file, so children inherit it, and it
// ends with the last process that has the descriptor. Behind the bytes that stand for units are the
// notes, at a place for each unit, which say to people who holds it.
#include "muster/launch/lease.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>

#include "muster/base/byte_lock.h"
#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/error.h"
#include "muster/base/lookup.h"
#include "muster/base/no_copy.h"
#include "muster/base/pauses.h"
#include "muster/base/runtime_folder.h"
#include "muster/base/strings.h"
#include "muster/launch/lease_note.h"

namespace muster {

namespace {

constexpr off_t kNotes = 4096;          // where the notes begin
constexpr auto kTakingFile = "taking";  // locked while someone takes or reads leases

struct Segment {  // of units: [first, end)
  int first = 0;
  int end = 0;
};

using Segments = std::vector<Segment>;

// False when another holds some of the segment.
bool try_lock(int fd, Segment segment, const std::string& path) {
  const int error = set_byte_lock(fd, F_WRLCK, segment.first, segment.end - segment.first);
  if (is_one_of(error, 0, EAGAIN, EACCES))
    return error == 0;
  fail_errno(error,
             "lease: cannot lock '",
             path,
             "' (a file system without locks?); set MUSTER_RUNTIME_DIR to a folder on a local one");
}

// Adds what others (other open file descriptions) hold inside `within`, in order. The kernel names
// some conflicting lock, which need not be the first, so both sides of it are asked for again.
void add_held(int fd, Segment within, Segments& held) {
  if (within.first >= within.end)
    return;
  struct flock lock = byte_lock(F_WRLCK, within.first, within.end - within.first);
  if (::fcntl(fd, F_OFD_GETLK, &lock) != 0)
    fail_errno("lease: cannot see a file's locks", errno);
  if (lock.l_type == F_UNLCK)
    return;
  const bool ends_with_file = lock.l_len == 0;
  const auto clamp = [&](off_t at) {
    return static_cast<int>(std::clamp<off_t>(at, within.first, within.end));
  };
  const Segment found{clamp(lock.l_start),
                      ends_with_file ? within.end : clamp(lock.l_start + lock.l_len)};
  add_held(fd, {within.first, found.first}, held);
  held.push_back(found);
  add_held(fd, {found.end, within.end}, held);
}

Segments held_segments(int fd) {
  Segments held;
  add_held(fd, {0, kWholeGpu}, held);
  return held;
}

// The first `units` of the gaps between `held`; nothing when there are not so many.
std::optional<Segments> free_segments(Segments held, int units) {
  held.push_back({kWholeGpu, kWholeGpu});
  Segments chosen;
  int at = 0;
  for (const Segment& segment : held) {
    const int size = std::min(units, segment.first - at);
    if (size > 0) {
      chosen.push_back({at, at + size});
      units -= size;
    }
    at = segment.end;
  }
  if (units > 0)
    return std::nullopt;
  return chosen;
}

constexpr size_t kMaxUuid = 96;

// A UUID is text from a driver or a file, and becomes the name of a file. "MIG-GPU-<uuid>/1/0", the
// older form, has slashes, and AMD's "GPU-pci-0000:3b:00.0" dots.
bool is_uuid(const std::string& text) {
  const bool begins_well = text.starts_with("GPU-") || text.starts_with("MIG-");
  const std::string_view others = text.starts_with("MIG-GPU-") ? "-:./" : "-:.";
  return begins_well && text.size() > 4 && text.size() <= kMaxUuid &&
         all_of(text, [&](unsigned char c) { return std::isalnum(c) != 0 || contains(others, c); });
}

// The name of the GPU's file. A slash becomes '_', which no UUID has. Throws: invalid_argument.
std::string file_name(const GpuUuid& gpu) {
  if (!is_uuid(gpu.value)) {
    throw invalid_argument("lease: expected a UUID as GPU-8f3c… or MIG-…, got '",
                           printable(gpu.value.substr(0, kMaxUuid)),
                           "'; see `muster devices`");
  }
  std::string name = lower_case(gpu.value);
  std::ranges::replace(name, '/', '_');
  return name;
}

off_t note_place(const Segment& segment) {
  return kNotes + off_t{segment.first} * off_t{kLeaseNoteBytes};
}

void check_units(int units) {
  if (units >= 1 && units <= kWholeGpu)
    return;
  throw invalid_argument("lease: expected 1 to ", kWholeGpu, " units of a GPU, got ", units);
}

// Programs that clear old files out of /tmp leave the file alone: older versions of systemd because
// of its mode, newer ones also because of the lock. Both hold as long as a rank has the lease,
// whatever became of its launcher.
void keep_from_clearing(int file) {
  ::fchmod(file, kKeptFile);
  ::flock(file, LOCK_SH | LOCK_NB);
}

// Held while leases are taken or read: a job gets all of its leases at once, and a reader sees
// whole notes.
class Taking : NoCopy {
 public:
  Taking(Fd file, const std::string& path, const Deadline& deadline) : file_(std::move(file)) {
    Pauses pauses{std::chrono::microseconds(50), milliseconds(2)};
    while (!try_lock(file_.get(), {0, 1}, path)) {
      if (deadline.passed()) {
        throw Error(ErrorCode::timeout,
                    "lease: expected another process to release '",
                    printable(path),
                    "', got no release; see whether a muster process is stopped (`ps`: state T)");
      }
      pauses.wait(deadline);
    }
  }
  // The lock is released by name and not only by closing: a process that another thread forked just
  // now has the file open too.
  ~Taking() { set_byte_lock(file_.get(), F_UNLCK, 0, 1); }

 private:
  Fd file_;
};

}  // namespace

LeaseFolder::LeaseFolder(LeaseOptions options)
    : options_(std::move(options)),
      path_(options_.folder.empty() ? default_runtime_folder() : options_.folder),
      folder_(open_runtime_folder(path_, options_.create)) {}

// Returns an invalid descriptor when the file is absent and not to be made. Throws: io;
// failed_precondition for what is no ordinary file.
Fd LeaseFolder::open_file(const std::string& name, bool create) const {
  if (!folder_.valid())
    return {};
  const int flags =
      O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (create ? O_CREAT : 0);
  Fd file(::openat(folder_.get(), name.c_str(), flags, kKeptFile));
  if (!file.valid() && errno == ENOENT && !create)
    return {};
  if (!file.valid())
    fail_errno(errno, "lease: cannot open '", path_, "/", name, "'");
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw failed_precondition(
        "lease: expected an ordinary file, got '", path_, "/", name, "'; remove it");
  }
  return file;
}

void Lease::end() {
  if (taken_ && fd_.valid())
    set_byte_lock(fd_.get(), F_UNLCK, 0, kWholeGpu);
  fd_.reset();
}

std::optional<Lease> LeaseFolder::inherited(const GpuUuid& gpu) const {
  struct stat file{};
  if (!folder_.valid() ||
      ::fstatat(folder_.get(), file_name(gpu).c_str(), &file, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::nullopt;
  }
  for (const auto& word : split(options_.inherited, ',')) {
    const auto fd = parse_count(word);
    struct stat info{};
    const bool is_open = fd && ::fstat(*fd, &info) == 0;
    if (!is_open || info.st_dev != file.st_dev || info.st_ino != file.st_ino)
      continue;
    // The copy has the same lock, which belongs to the open file.
    Fd copy(::fcntl(*fd, F_DUPFD_CLOEXEC, 3));
    if (copy.valid())
      return Lease(gpu, std::move(copy), false);
  }
  return std::nullopt;
}

// Returns nothing when there are not so many free units. The caller holds a Taking.
std::optional<Lease> LeaseFolder::take(const GpuUuid& gpu, int units, const LeaseNote& note) const {
  if (auto ours = inherited(gpu))
    return ours;
  const auto name = file_name(gpu);
  Fd file = open_file(name, true);
  const auto segments = free_segments(held_segments(file.get()), units);
  if (!segments)
    return std::nullopt;
  keep_from_clearing(file.get());
  const auto bytes = lease_note_to_bytes(complete_lease_note(note));
  for (const Segment& segment : *segments) {
    if (!try_lock(file.get(), segment, path_ + "/" + name))
      return std::nullopt;
    // A full disk is no reason to refuse: the lock is the lease.
    (void)!::pwrite(file.get(), bytes.data(), bytes.size(), note_place(segment));
  }
  return Lease(gpu, std::move(file), true);
}

// Who holds the GPU now. The caller holds a Taking.
LeaseHolders LeaseFolder::read_holders(const GpuUuid& gpu) const {
  const Fd file = open_file(file_name(gpu), false);
  if (!file.valid())
    return {};
  LeaseHolders holders;
  for (const Segment& segment : held_segments(file.get())) {
    LeaseHolder holder{.units = segment.end - segment.first};
    std::string bytes(kLeaseNoteBytes, '\0');
    if (::pread(file.get(), bytes.data(), bytes.size(), note_place(segment)) > 0)
      holder.note = lease_note_from_bytes(bytes);
    if (holder.note)
      holder.alive = lease_note_alive(*holder.note);
    // A lease that fills several gaps has left the same note in each.
    LeaseHolder* const same = element_where(holders, [&](const LeaseHolder& other) {
      return holder.note && other.note == holder.note;
    });
    if (same == nullptr) {
      holders.push_back(std::move(holder));
    } else {
      same->units += holder.units;
    }
  }
  return holders;
}

std::optional<Lease> LeaseFolder::try_take(const GpuUuid& gpu,
                                           int units,
                                           const LeaseNote& note) const {
  LeaseResult result = try_take_all({{gpu, units}}, note);
  if (result.leases.empty())
    return std::nullopt;
  return std::move(result.leases.front());
}

// The leases are taken in the order of the GPUs' UUIDs; if one is busy, those before it end with
// `result.leases`.
LeaseResult LeaseFolder::try_take_all(LeaseWishes wishes, const LeaseNote& note) const {
  std::ranges::sort(wishes, {}, &LeaseWish::gpu);
  for (const LeaseWish& wish : wishes)
    check_units(wish.units);
  const auto twice = std::ranges::adjacent_find(
      wishes, {}, [](const LeaseWish& wish) { return file_name(wish.gpu); });
  if (twice != wishes.end()) {
    throw invalid_argument("lease: expected every GPU once, got ", twice[1].gpu.value, " twice");
  }
  if (!folder_.valid()) {
    throw failed_precondition("lease: expected the folder '",
                              printable(path_),
                              "', got none; open it with LeaseOptions::create");
  }
  const Taking taking(
      open_file(kTakingFile, true), path_ + "/" + kTakingFile, Deadline(options_.patience));
  LeaseResult result;
  for (const LeaseWish& wish : wishes) {
    if (auto lease = take(wish.gpu, wish.units, note)) {
      result.leases.push_back(std::move(*lease));
    } else {
      result.busy.push_back({wish.gpu, read_holders(wish.gpu)});
    }
  }
  if (!result.busy.empty())
    result.leases.clear();
  return result;
}

LeaseHolders LeaseFolder::holders(const GpuUuid& gpu) const {
  Fd file = open_file(kTakingFile, false);
  if (!file.valid())
    return {};  // nobody ever took one
  const Taking taking(std::move(file), path_ + "/" + kTakingFile, Deadline(options_.patience));
  return read_holders(gpu);
}

}  // namespace muster
