// The lock is a lock of the kernel on a file in the folder, so it ends with the processes that hold
// it. The file's text says which start of a job holds it: the launchers of other hosts, which
// belong to the same start, then share the lock instead of waiting for it.
#include "muster/base/folder_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/byte_lock.h"
#include "muster/base/clock.h"
#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/host_identity.h"
#include "muster/base/lock_note.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr auto kNobody = "-";  // in place of a start or an attempt that is none

// The words of the file's text, in this order.
enum Word : size_t { kStart, kPid, kHost, kSince, kAttempt, kWords };

std::string lock_note(const FolderClaim& claim) {
  const auto word = [](const std::string& text) {
    return text.empty() ? kNobody : text;
  };
  return cat(word(claim.start),
             " ",
             ::getpid(),
             " ",
             own_host_name(),
             " ",
             std::time(nullptr),
             " ",
             word(claim.attempt),
             "\n");
}

std::string text_of_lock(const Fd& file) {
  char text[512];
  const ssize_t size = file.valid() ? ::pread(file.get(), text, sizeof(text), 0) : 0;
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

// Empty words where the text has fewer.
Strings words_of_note(const std::string& text) {
  Strings words = split(trim(text), ' ');
  words.resize(kWords);
  return words;
}

Strings read_lock_note(const Fd& file) {
  return words_of_note(text_of_lock(file));
}

// A machine that went down may leave zeros in place of a note. Throws: failed_precondition for a
// file that another program has written.
void check_is_ours(const std::string& text, const std::string& path) {
  const bool is_blank = text.find_first_not_of('\0') == npos;
  if (is_blank || is_lock_note(text))
    return;
  throw failed_precondition(
      "the file '",
      printable(path),
      "': expected a lock of muster's, got another program's file; move it, or give "
      "another folder");
}

// "process 4711 on host-a, since 2026-01-31 12:00:00"; empty for a note that says nothing. The file
// may be anybody's, so it is shown as it can be printed.
std::string holder_in(const Strings& note) {
  if (note[kPid].empty())
    return "";
  const auto since = parse_int(note[kSince]);
  const std::string time = since ? cat(", since ", format_local_time(*since)) : "";
  return printable(cat("process ", note[kPid], " on ", note[kHost], time));
}

}  // namespace

// A full disk may have cut a note off anywhere: then no line end follows.
bool is_lock_note(const std::string& text) {
  const Strings words = words_of_note(text);
  const bool is_cut_off = !text.empty() && !text.ends_with('\n');
  const bool has_pid = parse_int(words[kPid]).has_value();
  return words[kHost].empty() ? is_cut_off && (has_pid || words[kPid].empty()) : has_pid;
}

FolderLock::FolderLock(FolderClaim claim)
    : claim_(std::move(claim)), path_(claim_.folder + "/" + claim_.file) {
  const Deadline deadline(claim_.patience);
  std::error_code no_folder;
  for (;;) {
    std::filesystem::create_directories(claim_.folder, no_folder);
    file_ = Fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    const int error = file_.valid() ? 0 : errno;
    if (!is_one_of(error, 0, ENOENT) && holder_of_folder(claim_).empty()) {
      go_on_without(error);
      return;
    }
    if (file_.valid() && try_lock())
      return;
    if (deadline.passed())
      break;
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (no_folder)
    fail_errno(no_folder.value(), "cannot create '", claim_.folder, "'");
  const auto holder = holder_of_folder(claim_);
  throw failed_precondition(
      printable(cat("the folder '",
                    claim_.folder,
                    "': expected no job that still writes there, got one",
                    holder.empty() ? "" : cat(" (", holder, ")"),
                    "; wait until it has ended (`muster ps`), or give this one another folder")));
}

void FolderLock::go_on_without(int error) {
  why_not_ = std::generic_category().message(error);
  log_debug("no lock on ", printable(claim_.folder), " (", why_not_, "); going on without");
}

// Whether the holder with this note belongs to the same start.
bool FolderLock::may_share(const Strings& note) const {
  const bool is_same_start = !claim_.start.empty() && note[kStart] == claim_.start;
  const bool is_same_attempt = !claim_.attempt.empty() && note[kAttempt] == claim_.attempt;
  return is_same_start && !is_same_attempt;
}

// False where another start holds it, or where the file has been removed meanwhile. The text is
// read when nobody writes it: the lock is tried first.
bool FolderLock::try_lock() {
  const int alone = set_byte_lock(file_.get(), F_WRLCK);
  const bool held = is_one_of(alone, EAGAIN, EACCES);
  if (alone != 0 && !held)
    go_on_without(alone);
  const auto text = text_of_lock(file_);
  check_is_ours(text, path_);
  const Strings before = words_of_note(text);
  is_new_start_ = before[kStart] != claim_.start;
  if (held && !(may_share(before) && set_byte_lock(file_.get(), F_RDLCK) == 0))
    return false;
  if (!is_at(file_, path_))  // a folder that held nothing is removed with its lock
    return false;
  if (held && claim_.attempt.empty())
    return true;  // the note is the first holder's
  const auto note = lock_note(claim_);
  const bool noted = ::ftruncate(file_.get(), 0) == 0 &&
                     ::pwrite(file_.get(), note.data(), note.size(), 0) == std::ssize(note);
  if (!noted)
    log_debug("no note in ", printable(path_));
  return true;
}

// To whoever has it, the lock is given again.
bool FolderLock::try_alone() const {
  return file_.valid() && why_not_.empty() && set_byte_lock(file_.get(), F_WRLCK) == 0;
}

void FolderLock::share() {
  if (file_.valid())
    set_byte_lock(file_.get(), F_RDLCK);
}

void FolderLock::remove_file() const {
  if (file_.valid())
    ::unlink(path_.c_str());
}

// Who opens the file meanwhile sees that it is gone, and makes another.
void FolderLock::remove_file_if_alone() {
  const bool is_ours = file_.valid() && why_not_.empty() && owner_ == ::getpid();
  if (is_ours && set_byte_lock(file_.get(), F_WRLCK) == 0)
    ::unlink(path_.c_str());
}

std::string holder_of_folder(const FolderClaim& claim) {
  const std::string path = claim.folder + "/" + claim.file;
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  const bool is_held = file.valid() && is_locked_by_another(file.get());
  return is_held ? holder_in(read_lock_note(file)) : "";
}

}  // namespace muster
