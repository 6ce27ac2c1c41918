// How it works: the file is a log of records, and each member keeps a table of what it has read so
// far (`read_to_`). An operation takes the file's lock, reads the records that others have written,
// and appends its own. A member that waits looks at the file's size, which any change makes grow.
#include "muster/store/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/lock.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/no_copy.h"
#include "muster/base/pauses.h"
#include "muster/base/strings.h"
#include "muster/store/file_lock.h"

namespace muster {

namespace {

// The locks of another boot's processes prove nothing.
std::string this_boot() {
  return std::string(trim(read_file("/proc/sys/kernel/random/boot_id")));
}

// Nothing for a record that is no header, or a damaged one.
std::optional<FileHeader> header_in(const std::optional<FileRecord>& record) {
  if (!record || record->kind != FileRecord::Kind::header)
    return std::nullopt;
  return decode_header(record->value);
}

// All refusals name the file, and say what was expected of it.
Error refusal(const std::string& path, const std::string& rest) {
  return failed_precondition("file store '", path, "': expected ", rest);
}

// Refuses a file that is no store's. A file that is cut within the magic is one, without records.
std::string_view bytes_behind_magic(std::string_view bytes, const std::string& path) {
  const size_t compared = std::min(bytes.size(), kFileMagic.size());
  if (bytes.substr(0, compared) != kFileMagic.substr(0, compared))
    throw refusal(path, "a muster store or no file, got another file; choose another path");
  return bytes.substr(compared);
}

// Reads what lies from `from` to `to`, or less where the file ends before.
std::string read_at(int fd, off_t from, off_t to, const std::string& path) {
  std::string bytes(std::max<off_t>(to - from, 0), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + have, bytes.size() - have, from);
    if (n == 0)
      break;
    if (n > 0) {
      have += n;
      from += n;
    } else if (errno != EINTR) {
      fail_errno(errno, "file store: cannot read '", path, "'");
    }
  }
  bytes.resize(have);
  return bytes;
}

void write_at(int fd, std::string_view bytes, off_t at, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), at);
    if (n >= 0) {
      bytes.remove_prefix(n);
      at += n;
    } else if (errno != EINTR) {
      fail_errno(errno, "file store: cannot write '", path, "'");
    }
  }
}

struct stat status_of(const Fd& file, const std::string& path) {
  struct stat info{};
  if (::fstat(file.get(), &info) != 0)
    fail_errno(errno, "file store: cannot read '", path, "'");
  return info;
}

// The bytes behind `size` are gone for all members.
void truncate_to(int fd, off_t size, const std::string& path) {
  if (::ftruncate(fd, size) != 0)
    fail_errno(errno, "file store: cannot cut '", path, "'");
}

}  // namespace

// While one lives, its thread is alone in this process and among the processes, and has read every
// record of the others.
class FileStore::Operation : NoCopy {
 public:
  explicit Operation(FileStore& store) : lock_(store.mutex_), fd_(store.fd_.get()) {
    lock_operation(
        fd_, store.options_.path, Deadline(bounded_timeout(store.options_.lock_timeout)));
    try {
      store.read_new_records();
    } catch (...) {
      unlock_operation(fd_);
      throw;
    }
  }
  ~Operation() { unlock_operation(fd_); }

 private:
  const std::lock_guard<std::mutex> lock_;
  const int fd_;
};

FileStore::FileStore(FileStoreOptions options) : options_(std::move(options)), owner_(::getpid()) {
  const bool is_rank = options_.rank >= 0 && options_.rank < options_.world_size;
  if (!is_rank)
    throw invalid_argument("file store: expected 0 <= rank < world size, got rank ",
                           options_.rank,
                           " of ",
                           options_.world_size);
  open_file();
  lock_operation(fd_.get(), options_.path, Deadline(bounded_timeout(options_.lock_timeout)));
  join();  // on failure closing the file releases every lock
  unlock_operation(fd_.get());
}

// A forked child has the descriptor too, and leaves nothing.
FileStore::~FileStore() {
  if (::getpid() != owner_)
    return;
  try {
    const Lock lock(mutex_);
    lock_operation(fd_.get(), options_.path, Deadline(std::chrono::seconds(1)));
    unlock_member(fd_.get(), options_.rank);
    // The last one out leaves nothing behind to be taken for a run that failed.
    if (!lowest_living_member(fd_.get()))
      truncate_to(fd_.get(), 0, options_.path);
    unlock_operation(fd_.get());
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

// The call never waits for the other end of a pipe, nor takes a terminal for this process.
void FileStore::open_file() {
  const std::string& path = options_.path;
  fd_ = open_path(path, O_RDWR | O_CREAT | O_NOCTTY | O_NONBLOCK, "file store: cannot open", 0600);
  const struct stat info = status_of(fd_, path);
  if (!S_ISREG(info.st_mode))
    throw refusal(path, "a regular file, got something else; choose another path");
  if (info.st_uid != ::geteuid())
    throw refusal(path,
                  cat("a file of this user (",
                      ::geteuid(),
                      "), got one of user ",
                      info.st_uid,
                      "; choose another path"));
}

// The caller holds the file's lock.
void FileStore::join() {
  const std::string bytes = read_at(fd_.get(), 0, file_size(), options_.path);
  std::string_view rest = bytes_behind_magic(bytes, options_.path);
  const auto first = take_record(rest);
  const auto header = header_in(first);
  const auto living = lowest_living_member(fd_.get());
  if (header && header->boot_id != this_boot())
    throw refusal(
        options_.path,
        cat("a file of this run, got one of another host, or from before this host's last "
            "start (job '",
            first->key,
            "'); remove it"));
  if (living && !header)
    throw refusal(options_.path,
                  cat("a whole header, got a damaged one while rank ",
                      *living,
                      " uses it; end that job or choose another path"));
  if (!living) {
    if (!bytes.empty())
      warn_of_leftover(first ? first->key : "");
    start_anew(header ? header->generation + 1 : 1);
  }
  read_to_ = 0;
  read_new_records();
  if (living)
    check_run(*first, *living);
  take_rank();
}

void FileStore::warn_of_leftover(const std::string& job) const {
  log_warning("file store '",
              options_.path,
              "': left over from an earlier run (job '",
              job,
              "') of which no process lives; starting anew");
}

// From here on this process is a member, which others see by its lock.
void FileStore::take_rank() {
  if (!lock_member(fd_.get(), options_.rank))
    throw refusal(options_.path,
                  cat("rank ",
                      options_.rank,
                      " once, got it twice: ",
                      who(options_.rank),
                      " and pid ",
                      owner_,
                      " (this one); give each process its own rank"));
  write_record({FileRecord::Kind::member, cat(options_.rank), cat("pid ", owner_)});
}

// Refuses a file whose run, some of whose members live, is not the one that this member belongs to.
void FileStore::check_run(const FileRecord& header_record, int living) {
  const auto user = cat("rank ", living, ", ", who(living));
  if (header_record.key != options_.job) {
    throw refusal(options_.path,
                  cat("only job '",
                      options_.job,
                      "' to use it, got job '",
                      header_record.key,
                      "' (",
                      user,
                      ") too; give each job its own path"));
  }
  const auto header = decode_header(header_record.value);
  if (header->world_size != options_.world_size) {
    throw refusal(options_.path,
                  cat("one world size, got ",
                      header->world_size,
                      " (",
                      user,
                      ") and ",
                      options_.world_size,
                      " (rank ",
                      options_.rank,
                      ", pid ",
                      owner_,
                      "); correct one, or choose another path"));
  }
  if (members_.contains(options_.rank) && !is_member_alive(fd_.get(), options_.rank)) {
    throw refusal(options_.path,
                  cat("rank ",
                      options_.rank,
                      " to join once, got pid ",
                      owner_,
                      " after ",
                      who(options_.rank),
                      " had ended or left, while ",
                      user,
                      " of that run still lives; end it first or choose another path"));
  }
}

// Members say who they are in their records.
std::string FileStore::who(int rank) const {
  return find_or(members_, rank, "an unknown process");
}

// Everything in the file goes, and a header says whose it is now.
void FileStore::start_anew(int64_t generation) {
  truncate_to(fd_.get(), 0, options_.path);
  const FileHeader header{
      .world_size = options_.world_size, .generation = generation, .boot_id = this_boot()};
  write_at(fd_.get(),
           cat(kFileMagic,
               encode_record({FileRecord::Kind::header, options_.job, encode_header(header)})),
           0,
           options_.path);
}

// It throws when somebody has removed the file: those who come now would make another one.
off_t FileStore::file_size() const {
  const struct stat info = status_of(fd_, options_.path);
  if (info.st_nlink == 0)
    throw refusal(options_.path,
                  "the file to stay while it is used, got it removed; start all ranks again");
  return info.st_size;
}

// The caller holds the file's lock, so that no record is being written.
void FileStore::read_new_records() {
  const off_t size = file_size();
  if (size < read_to_)
    throw refusal(options_.path,
                  "the file to grow only, got it cut by another program; start all ranks again");
  if (size == read_to_)
    return;
  const std::string bytes = read_at(fd_.get(), read_to_, size, options_.path);
  std::string_view rest = bytes;
  if (read_to_ == 0)
    rest.remove_prefix(std::min(rest.size(), kFileMagic.size()));
  // Bytes behind the last whole record were left by a writer that died: the next record overwrites
  // them.
  while (auto record = take_record(rest))
    apply(std::move(*record));
  read_to_ += std::ssize(bytes) - std::ssize(rest);
}

// A header begins another run, to which nothing before it belongs.
void FileStore::apply(FileRecord record) {
  switch (record.kind) {
    case FileRecord::Kind::header:
      members_.clear();
      table_.clear();
      break;
    case FileRecord::Kind::member:
      if (const auto rank = parse_count(record.key))
        members_[*rank] = record.value;
      break;
    case FileRecord::Kind::set:
      table_.set(record.key, std::move(record.value));
      break;
    case FileRecord::Kind::remove:
      table_.remove(record.key);
      break;
  }
}

// A torn record behind the last whole one is cut off first, as the new one may be shorter.
void FileStore::write_record(const FileRecord& record) {
  const auto bytes = encode_record(record);
  if (file_size() > read_to_)
    truncate_to(fd_.get(), read_to_, options_.path);
  write_at(fd_.get(), bytes, read_to_, options_.path);
  read_to_ += std::ssize(bytes);
  apply(record);
}

void FileStore::set(const std::string& key, const std::string& value) {
  check_limits("set", key, value);
  const Operation operation(*this);
  write_record({FileRecord::Kind::set, key, value});
}

std::string FileStore::get(const std::string& key, milliseconds timeout) {
  check_limits("get", key);
  std::string value;
  wait_for("get", {key}, timeout, &value);
  return value;
}

// The file's lock makes reading and writing one step.
int64_t FileStore::add(const std::string& key, int64_t amount) {
  check_limits("add", key);
  const Operation operation(*this);
  const int64_t sum = table_.sum(key, amount);
  write_record({FileRecord::Kind::set, key, std::to_string(sum)});
  return sum;
}

std::string FileStore::compare_set(const std::string& key,
                                   const std::string& expected,
                                   const std::string& desired) {
  check_limits("compare_set", key, expected);
  check_limits("compare_set", key, desired);
  const Operation operation(*this);
  auto comparison = table_.compare(key, expected, desired);
  if (comparison.store)
    write_record({FileRecord::Kind::set, key, desired});
  return std::move(comparison.result);
}

bool FileStore::check(const Strings& keys) {
  check_limits("check", keys);
  const Operation operation(*this);
  return table_.first_missing(keys) == keys.size();
}

void FileStore::wait(const Strings& keys, milliseconds timeout) {
  check_limits("wait", keys);
  wait_for("wait", keys, timeout, nullptr);
}

// A key that is not there needs no record.
bool FileStore::remove(const std::string& key) {
  check_limits("remove", key);
  const Operation operation(*this);
  if (table_.find(key) == nullptr)
    return false;
  write_record({FileRecord::Kind::remove, key, ""});
  return true;
}

int64_t FileStore::num_keys() {
  const Operation operation(*this);
  return table_.size();
}

// Members that have left count too.
int FileStore::num_joined() {
  const Operation operation(*this);
  return static_cast<int>(members_.size());
}

// Waits until all keys are there; `value`, where given, becomes the first one's. Between looks only
// the file's size is asked for, which takes no lock. A record may take the place of a torn one of
// its size, hence another look now and then.
void FileStore::wait_for(const char* operation_name,
                         const Strings& keys,
                         milliseconds timeout,
                         std::string* value) {
  const Deadline deadline(bounded_timeout(timeout));
  constexpr milliseconds kNextLook{250};
  Pauses pauses{std::chrono::microseconds(100), milliseconds(10)};
  for (;;) {
    off_t seen = 0;
    {
      const Operation operation(*this);
      seen = file_size();
      if (table_.first_missing(keys) == keys.size()) {
        if (value != nullptr)
          *value = *table_.find(keys[0]);
        return;
      }
      if (deadline.passed())
        throw missing_keys_error(operation_name,
                                 table_.describe_missing(keys),
                                 timeout,
                                 cat("file '", options_.path, "'"));
    }
    const Deadline next_look(std::min(deadline.left(), kNextLook));
    while (file_size() == seen && !next_look.passed())
      pauses.wait(next_look);
  }
}

}  // namespace muster
