#include "muster/cluster/hostfile.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/route.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int kMostRanks = 1'000'000;

using Refuse = std::function<void(const std::string& got)>;

int parse_slots(std::string_view text, const Refuse& refuse) {
  const auto value = parse_int(text);
  if (!value || *value < 1 || *value > kMostRanks)
    refuse(std::string(text));
  return static_cast<int>(value.value_or(1));
}

// It becomes an argument of ssh: what looks like an option must not.
void check_name(const std::string& name, const Refuse& refuse) {
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_' || c == '@' || c == ':' ||
           c == '%';
  });
  if (name.empty() || name[0] == '-' || !plain)
    refuse(name);
}

// "a:4" has ranks; "fe80::1" is an address.
HostSpec parse_host_spec(std::string_view text, const Refuse& refuse) {
  const size_t colon = text.find(':');
  HostSpec host;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos)
      refuse(std::string(text));
    host.name = text.substr(1, close - 1);
    if (!is_ipv6_address(host.name))
      refuse(std::string(text));
    const std::string_view rest = text.substr(std::min(text.size(), close + 1));
    if (!rest.empty() && rest[0] != ':')
      refuse(std::string(text));
    if (!rest.empty())
      host.nproc = parse_slots(rest.substr(1), refuse);
  } else if (colon != std::string_view::npos &&
             text.find(':', colon + 1) == std::string_view::npos) {
    host.name = text.substr(0, colon);
    host.nproc = parse_slots(text.substr(colon + 1), refuse);
  } else {
    host.name = text;
    if (colon != std::string_view::npos && !is_ipv6_address(host.name))
      refuse(std::string(text));
  }
  check_name(host.name, refuse);
  return host;
}

}  // namespace

std::vector<HostSpec> parse_host_list(const std::string& text, const std::string& flag) {
  const Refuse refuse = [&](const std::string& got) {
    throw Error(ErrorCode::invalid_argument,
                cat(flag,
                    ": expected names with numbers of ranks as in a:4,b:8, got '",
                    printable(got),
                    "' in '",
                    printable(text),
                    "'"));
  };
  std::vector<HostSpec> hosts;
  std::unordered_set<std::string> names;
  for (const std::string& piece : split(text, ',')) {
    hosts.push_back(parse_host_spec(trim(piece), refuse));
    if (!names.insert(hosts.back().name).second) {
      throw Error(ErrorCode::invalid_argument,
                  cat(flag, ": expected each host once, got '", hosts.back().name, "' again"));
    }
  }
  return hosts;
}

std::vector<HostSpec> parse_hostfile(const std::string& text, const std::string& path) {
  std::vector<HostSpec> hosts;
  std::unordered_map<std::string, size_t> places;  // in hosts, by name
  int line_number = 0;
  for (const std::string& line : split(without_byte_order_mark(text), '\n')) {
    ++line_number;
    const Refuse refuse = [&](const std::string& got) {
      throw Error(ErrorCode::invalid_argument,
                  cat(path,
                      ":",
                      line_number,
                      ": expected a host as in 'a slots=4' or 'a:4', got '",
                      printable(got),
                      "'"));
    };
    std::string_view rest = trim(std::string_view(line).substr(0, line.find('#')));
    if (rest.empty())
      continue;
    const size_t blank = rest.find_first_of(" \t");
    HostSpec host = parse_host_spec(rest.substr(0, blank), refuse);
    while (blank != std::string_view::npos &&
           !(rest = trim(rest.substr(rest.find_first_of(" \t")))).empty()) {
      const std::string_view word = rest.substr(0, rest.find_first_of(" \t"));
      if (word.starts_with("slots=")) {
        host.nproc = parse_slots(word.substr(6), refuse);
      } else if (!word.starts_with("max_slots=") && !word.starts_with("max-slots=")) {
        refuse(std::string(word));
      }
      if (word.size() == rest.size())
        break;
    }
    const auto [place, is_new] = places.emplace(host.name, hosts.size());
    if (is_new) {
      hosts.push_back(std::move(host));
    } else {
      HostSpec& before = hosts[place->second];
      before.nproc = before.nproc.value_or(1) + host.nproc.value_or(1);
    }
  }
  if (hosts.empty()) {
    throw Error(ErrorCode::invalid_argument,
                cat(path, ": expected a host a line, as in 'a slots=4', got none"));
  }
  return hosts;
}

std::vector<HostSpec> read_hostfile(const std::string& path) {
  return parse_hostfile(read_small_file(path), path);
}

}  // namespace muster
