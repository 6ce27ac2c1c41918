#include "muster/device/xid_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <optional>

#include "muster/base/fd.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr std::string_view kMark = "NVRM: Xid (";
constexpr size_t kMostBytes = size_t{16} << 20;  // kernels keep less

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

// "PCI:0000:3b:00" or "PCI:0000:3b:00.0", in whatever case.
std::string pci_address_in(std::string_view text) {
  constexpr std::string_view kBus = "PCI:";
  if (text.starts_with(kBus))
    text.remove_prefix(kBus.size());
  const std::string address = lower_case(std::string(text));
  return address.find('.') == std::string::npos ? address + ".0" : address;
}

// After "priority,sequence,microseconds,flags;".
std::optional<XidError> xid_error_in(std::string_view record) {
  const size_t behind_head = record.find(';');
  const size_t mark = record.find(kMark);
  if (behind_head == std::string_view::npos || mark == std::string_view::npos || mark < behind_head)
    return std::nullopt;
  const auto head = split(record.substr(0, behind_head), ',');
  const auto at = head.size() > 2 ? parse_int(head[2]) : std::nullopt;
  const std::string_view told = record.substr(mark + kMark.size());
  const size_t close = told.find("): ");
  if (!at || close == std::string_view::npos)
    return std::nullopt;
  const std::string_view behind = told.substr(close + 3);
  const size_t comma = std::min(behind.find(','), behind.size());
  const auto number = parse_int(behind.substr(0, comma));
  if (!number || *number < 0 || *number > INT16_MAX)
    return std::nullopt;
  return XidError{.pci = {pci_address_in(told.substr(0, close))},
                  .number = static_cast<int>(*number),
                  .text = printable(trimmed(behind.substr(std::min(comma + 1, behind.size())))),
                  .at_microseconds = *at};
}

// /dev/kmsg gives a record a read, and says EPIPE where some were overwritten meanwhile.
std::string whole_log(int fd) {
  std::string text;
  std::array<char, 8192> part;
  while (text.size() < kMostBytes) {
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR))
      continue;
    if (got <= 0)
      break;
    text.append(part.data(), static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

bool is_of_hardware(const XidError& error) {
  constexpr int kNumbers[] = {48, 64, 74, 79, 92, 95, 119, 120, 140};
  return std::find(std::begin(kNumbers), std::end(kNumbers), error.number) != std::end(kNumbers);
}

std::vector<XidError> xid_errors_in(std::string_view records) {
  std::vector<XidError> found;
  for (const auto& record : split(records, '\n'))
    if (auto error = xid_error_in(record))
      found.push_back(std::move(*error));
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
