// How it works: the bytes lie on a page of their own, which copies share and which is wiped with
// the last of them. Texts with the digits are wiped as soon as they were read or written.
#include "muster/store/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <span>

#include "muster/base/env.h"
#include "muster/base/env_count.h"
#include "muster/base/error.h"
#include "muster/base/folder_owner.h"
#include "muster/base/hex.h"
#include "muster/base/no_copy.h"
#include "muster/base/random_bytes.h"
#include "muster/base/strings.h"
#include "muster/store/bytes.h"

namespace muster {

// A page of its own can be kept out of core dumps whole.
class Secret::Page : NoCopy {
 public:
  Page()
      : bytes_(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (bytes_ == MAP_FAILED)
      fail_errno("secret: cannot map a page", errno);
    ::madvise(bytes_, kBytes, MADV_DONTDUMP);
  }
  ~Page() {
    OPENSSL_cleanse(bytes_, kBytes);
    ::munmap(bytes_, kBytes);
  }

  unsigned char* data() const { return static_cast<unsigned char*>(bytes_); }

 private:
  void* bytes_;
};

namespace {

// A text that is wiped at the end.
struct WipedText : NoCopy {
  explicit WipedText(std::string given) : text(std::move(given)) {}
  ~WipedText() { OPENSSL_cleanse(text.data(), text.size()); }

  std::string text;
};

// There is room for the digits and a few blanks around them.
constexpr size_t kMaxText = 2 * Secret::kBytes + 8;

// -1 for another character.
int hex_digit(char c) {
  const size_t digit = kHexDigits.find(lower_case(c));
  if (digit == npos)
    return -1;
  return digit;
}

// The file is the one that was opened, whatever has its name now.
struct stat stat_of(int fd, const std::string& name) {
  struct stat info{};
  if (::fstat(fd, &info) != 0)
    fail_errno(errno, "secret: cannot read ", name);
  return info;
}

}  // namespace

// OpenSSL has a generator too. It takes 2 ms to start, and a job whose ranks do not join the store
// needs nothing else of OpenSSL.
Secret Secret::make() {
  const auto page = std::make_shared<Page>();
  fill_random(std::as_writable_bytes(std::span(page->data(), kBytes)));
  return Secret(page);
}

// The error does not quote the text, which may be a secret with a slip in it.
Secret Secret::from_hex(std::string_view text) {
  const std::string_view digits = trim(without_byte_order_mark(text));
  const auto page = std::make_shared<Page>();
  bool is_good = digits.size() == 2 * kBytes;
  for (size_t i = 0; is_good && i < kBytes; ++i) {
    const int high = hex_digit(digits[2 * i]);
    const int low = hex_digit(digits[2 * i + 1]);
    is_good = high >= 0 && low >= 0;
    page->data()[i] = high << 4 | low;
  }
  if (is_good)
    return Secret(page);
  throw invalid_argument(
      "secret: expected ",
      2 * kBytes,
      " hexadecimal digits, got ",
      digits.size(),
      " characters that are too few, too many or not all hexadecimal; make one with "
      "`muster secret`");
}

// Who knows the derived secret learns nothing of this one.
Secret Secret::derive(std::string_view purpose) const {
  if (empty())
    throw failed_precondition("secret: expected one to derive from, got none");
  const auto page = std::make_shared<Page>();
  if (!hmac_sha256(bytes(), purpose, page->data()))
    throw Error(ErrorCode::internal, "secret: HMAC-SHA256 failed");
  return Secret(page);
}

Secret Secret::from_fd(int fd) {
  WipedBytes<kMaxText> text;
  const ssize_t size = ::pread(fd, text.data, sizeof(text.data), 0);
  if (size >= 0)
    return from_hex(std::string_view(text.data, size));
  if (errno != ESPIPE)
    fail_errno(errno, "secret: cannot read descriptor ", fd, " (MUSTER_SECRET_FD; inherited?)");
  throw invalid_argument("secret: expected a memfd or a regular file in descriptor ",
                         fd,
                         ", got a pipe or socket; use a private file");
}

namespace {

bool is_of_us_or_root(const struct stat& info) {
  return info.st_uid == ::geteuid() || info.st_uid == 0;
}

bool is_for_its_owner(const struct stat& info) {
  return is_of_us_or_root(info) && (info.st_mode & 077) == 0;
}

// Kubernetes mounts the secrets of a pod that is not root's like this: root's, and readable by the
// pod's own group (fsGroup). Whoever else is in such a group, root has let in.
bool is_for_a_group_by_root(const struct stat& info) {
  return info.st_uid == 0 && ::geteuid() != 0 && (info.st_mode & 037) == 0;
}

}  // namespace

Fd open_private_file(const std::string& path) {
  Fd fd = open_path(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, "secret: cannot open");
  const struct stat info = stat_of(fd.get(), in_quotes(path));
  if (!S_ISREG(info.st_mode)) {
    throw failed_precondition("secret: expected '",
                              printable(path),
                              "' to be a file, got ",
                              S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe",
                              "; name the file of the secret");
  }
  if (is_for_its_owner(info) || is_for_a_group_by_root(info))
    return fd;
  const std::string next =
      info.st_uid == ::geteuid()
          ? "chmod 600 it"
          : cat("make it a file of this user, ", ::geteuid(), ", as by a copy with mode 0600");
  throw failed_precondition(
      "secret: expected '",
      printable(path),
      "' to be this user's file that nobody else may read (mode 0600), got mode ",
      octal_mode(info.st_mode),
      " of user ",
      info.st_uid,
      "; ",
      next);
}

Secret Secret::from_file(const std::string& path) {
  return from_fd(open_private_file(path).get());
}

// The descriptor comes first: the launcher has made it, and the file is the user's.
std::optional<Secret> Secret::from_environment() {
  if (const auto fd = get_env_count("MUSTER_SECRET_FD"))
    return from_fd(*fd);
  if (const auto path = get_env("MUSTER_SECRET_FILE"))
    return from_file(*path);
  return std::nullopt;
}

// Copies of the secret share the page, so that the bytes are in one place.
std::string_view Secret::bytes() const {
  if (empty())
    return {};
  return {reinterpret_cast<const char*>(page_->data()), kBytes};
}

std::string Secret::hex() const {
  return to_hex(bytes());
}

// `rest` is not appended: a text that grows leaves a copy behind.
void Secret::write_to(int fd, const std::string& rest, const std::string& path) const {
  const WipedText digits(hex());
  write_all(fd, digits.text, path);
  write_all(fd, rest, path);
}

Fd Secret::to_memfd() const {
  if (empty())
    throw failed_precondition("secret: expected one to pass on, got none");
  Fd fd(::memfd_create("muster-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid())
    fail_errno("secret: cannot make a memfd", errno);
  write_to(fd.get());
  // A rank can read it, but not change what the others will read.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0)
    fail_errno("secret: cannot seal the memfd", errno);
  return fd;
}

}  // namespace muster
