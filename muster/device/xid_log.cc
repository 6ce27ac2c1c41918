// A record of the log is "priority,sequence,microseconds,flags;text". The driver's text holds the
// mark below, the GPU's address, "): ", the number of the error, and then words.
#include "muster/device/xid_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/device/numbers.h"

namespace muster {
namespace {

constexpr std::string_view kMark = "NVRM: Xid (";
constexpr size_t kMostBytes = size_t{16} << 20;  // kernels keep less

// Cuts the text in two at the first `mark`; nothing when it has none.
std::optional<std::pair<std::string_view, std::string_view>> cut_at(std::string_view text,
                                                                    std::string_view mark) {
  const size_t at = text.find(mark);
  if (at == npos)
    return std::nullopt;
  return std::pair(text.substr(0, at), text.substr(at + mark.size()));
}

std::string_view without_blanks_before(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

// Returns "0000:3b:00.0" for "PCI:0000:3b:00" or "PCI:0000:3b:00.0", in whatever case.
std::string pci_address_in(std::string_view text) {
  constexpr std::string_view kBus = "PCI:";
  if (text.starts_with(kBus))
    text.remove_prefix(kBus.size());
  const std::string address = lower_case(std::string(text));
  return contains(address, '.') ? address : address + ".0";
}

// Returns when a record was written, from its head; nothing when the head is none.
std::optional<int64_t> microseconds_in(std::string_view head) {
  const auto fields = split(head, ',');
  return fields.size() > 2 ? parse_int(fields[2]) : std::nullopt;
}

// A record that lacks any of the parts is of something else, and is left out.
std::optional<XidError> xid_error_in(std::string_view record) {
  const auto parts = cut_at(record, ";");
  const auto marked = parts ? cut_at(parts->second, kMark) : std::nullopt;
  const auto told = marked ? cut_at(marked->second, "): ") : std::nullopt;
  if (!told)
    return std::nullopt;
  const auto at = microseconds_in(parts->first);
  const auto [number_text, words] = cut_at(told->second, ",").value_or(std::pair(told->second, ""));
  const auto number = parse_number(number_text, 0, INT16_MAX);
  if (!at || !number)
    return std::nullopt;
  return XidError{.pci = {pci_address_in(told->first)},
                  .number = *number,
                  .text = printable(without_blanks_before(words)),
                  .at_microseconds = *at};
}

// Reads all records that are there: /dev/kmsg gives one at each read, and says EPIPE where some
// were overwritten meanwhile.
std::string whole_log(int fd) {
  std::string text;
  std::array<char, 8192> part;
  while (text.size() < kMostBytes) {
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got < 0 && (is_one_of(errno, EPIPE, EINTR)))
      continue;
    if (got <= 0)
      break;
    text.append(part.data(), got);
  }
  return text;
}

}  // namespace

bool is_of_hardware(const XidError& error) {
  constexpr int kNumbers[] = {48, 64, 74, 79, 92, 95, 119, 120, 140};
  return contains(kNumbers, error.number);
}

std::vector<XidError> xid_errors_in(std::string_view records) {
  std::vector<XidError> found;
  for (const auto& record : split(records, '\n')) {
    if (auto error = xid_error_in(record))
      found.push_back(std::move(*error));
  }
  return found;
}

std::vector<XidError> read_xid_errors(int64_t since_microseconds, const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid())
    return {};
  auto found = xid_errors_in(whole_log(fd.get()));
  std::erase_if(found,
                [&](const XidError& error) { return error.at_microseconds < since_microseconds; });
  return found;
}

}  // namespace muster
