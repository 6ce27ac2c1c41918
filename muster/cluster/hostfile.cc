// A host is a word such as "a", "a:4" or "[fe80::1]:4", in --hosts and in a file alike. In a file,
// "slots=" may follow it, as Open MPI writes it, and a host that stands in several lines has all
// their ranks.
#include "muster/cluster/hostfile.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/route.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/placement/request.h"

namespace muster {

namespace {

// Throws the error about a text, in the words of where the text comes from.
class Refuse {
 public:
  using Words = std::function<std::string(const std::string& got, const std::string& rule)>;

  explicit Refuse(Words words) : words_(std::move(words)) {}

  // `rule`: what was expected instead; empty: a host.
  [[noreturn]] void operator()(std::string_view got, const std::string& rule = "") const {
    throw invalid_argument(words_(std::string(got), rule));
  }

 private:
  Words words_;
};

int parse_slots(std::string_view text, const Refuse& refuse) {
  const auto value = parse_number(text, 1, kMostRanksOfHost);
  if (!value)
    refuse(text, cat("a number of ranks from 1 to ", kMostRanksOfHost));
  return *value;
}

// The resolver takes "2" for 0.0.0.2, "1.5" for 1.0.0.5 and "010.0.0.1" for 8.0.0.1.
void check_whole_address(const std::string& name, const Refuse& refuse) {
  in_addr address{};
  if (::inet_aton(name.c_str(), &address) == 0 || ::inet_pton(AF_INET, name.c_str(), &address) == 1)
    return;
  char meant[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address, meant, sizeof(meant));
  refuse(name, cat("a name or a whole address ('", name, "' would mean ", meant, ")"));
}

// A name becomes an argument of ssh, so it must not look like an option.
void check_name(const std::string& name, const Refuse& refuse) {
  constexpr size_t kMaxBytes = 512;  // no host's name is longer, with its user's before it
  const bool plain = all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || is_one_of(c, '.', '-', '_', '@', ':', '%');
  });
  if (name.empty() || name[0] == '-' || !plain || name.size() > kMaxBytes)
    refuse(name);
  check_whole_address(name, refuse);
}

// "[fe80::1]" or "[fe80::1]:4".
HostSpec parse_bracketed(std::string_view text, const Refuse& refuse) {
  const size_t close = text.find(']');
  if (close == npos)
    refuse(text);
  HostSpec host{.name = std::string(text.substr(1, close - 1))};
  const std::string_view rest = text.substr(close + 1);
  const bool is_well_formed = rest.empty() || rest.starts_with(':');
  if (!is_ipv6_address(host.name) || !is_well_formed)
    refuse(text);
  if (!rest.empty())
    host.nproc = parse_slots(rest.substr(1), refuse);
  return host;
}

// With one colon a number of ranks follows, with several it is an address.
HostSpec parse_plain(std::string_view text, const Refuse& refuse) {
  const auto colons = std::ranges::count(text, ':');
  if (colons == 1) {
    const size_t colon = text.find(':');
    return {.name = std::string(text.substr(0, colon)),
            .nproc = parse_slots(text.substr(colon + 1), refuse)};
  }
  HostSpec host{.name = std::string(text)};
  const bool is_address = is_ipv6_address(host.name) && !lacks_brackets(host.name);
  if (colons > 1 && !is_address) {
    const auto meant = with_brackets(host.name);
    refuse(host.name,
           meant.empty()
               ? ""
               : cat("an IPv6 address in brackets before a number of ranks, as in ", meant));
  }
  return host;
}

HostSpec parse_host_spec(std::string_view text, const Refuse& refuse) {
  HostSpec host = text.starts_with('[') ? parse_bracketed(text, refuse) : parse_plain(text, refuse);
  check_name(host.name, refuse);
  return host;
}

// Takes the text up to the first blank off `rest`.
std::string_view take_field(std::string_view& rest) {
  const std::string_view field = rest.substr(0, rest.find_first_of(" \t"));
  rest = trim(rest.substr(field.size()));
  return field;
}

// Refuses a `field` "max_slots=2" where the host has more slots; 0 means no limit, as for mpirun.
// The field is empty where the line has none.
void check_max_slots(const HostSpec& host, std::string_view field, const Refuse& refuse) {
  if (field.empty())
    return;
  const auto most = parse_count(field.substr(field.find('=') + 1));
  if (!most)
    refuse(field, "a number of slots at most, or 0 for no limit");
  if (*most > 0 && host.nproc.value_or(0) > *most)
    refuse(cat("slots=", *host.nproc, " ", field), "no more slots than max_slots");
}

// A host and its fields, as in "a slots=4 max_slots=8". The most that others may use is not asked.
HostSpec parse_line(std::string_view line, const Refuse& refuse) {
  HostSpec host = parse_host_spec(take_field(line), refuse);
  std::string_view max_slots;
  while (!line.empty()) {
    const std::string_view field = take_field(line);
    if (field.starts_with("slots=")) {
      if (host.nproc)
        refuse(cat(host.name, " with ", *host.nproc, " and ", field));
      host.nproc = parse_slots(field.substr(6), refuse);
    } else if (max_slots.empty() &&
               (field.starts_with("max_slots=") || field.starts_with("max-slots="))) {
      max_slots = field;
    } else {
      refuse(field);
    }
  }
  check_max_slots(host, max_slots, refuse);
  return host;
}

}  // namespace

// Each host may stand there once: a list is written by hand, and short.
HostSpecs parse_host_list(const std::string& text, const std::string& flag) {
  const Refuse refuse([&](const std::string& got, const std::string& rule) {
    return cat(flag,
               ": expected ",
               text_or(rule, "names with numbers of ranks as in a:4,b:8"),
               ", got '",
               shown_text(got),
               "' in '",
               shown_text(text),
               "'");
  });
  HostSpecs hosts;
  std::unordered_set<std::string> names;
  for (const auto& piece : split(text, ',')) {
    hosts.push_back(parse_host_spec(trim(piece), refuse));
    if (!names.insert(hosts.back().name).second) {
      throw invalid_argument(
          flag, ": expected each host once, got '", hosts.back().name, "' again");
    }
  }
  return hosts;
}

// Comments begin with '#'. The hosts keep the order of their first lines.
HostSpecs parse_hostfile(const std::string& text, const std::string& path) {
  HostSpecs hosts;
  std::unordered_map<std::string, size_t> places;  // in hosts, by name
  int line_number = 0;
  const Refuse refuse([&](const std::string& got, const std::string& rule) {
    return cat(printable(path),
               ":",
               line_number,
               ": expected ",
               text_or(rule, "a host as in 'a slots=4' or 'a:4'"),
               ", got '",
               shown_text(got),
               "'");
  });
  for (const auto& line : split(without_byte_order_mark(text), '\n')) {
    ++line_number;
    const std::string_view rest = trim(std::string_view(line).substr(0, line.find('#')));
    if (rest.empty())
      continue;
    HostSpec host = parse_line(rest, refuse);
    const auto [place, is_new] = places.emplace(host.name, hosts.size());
    if (is_new) {
      hosts.push_back(std::move(host));
    } else {
      HostSpec& before = hosts[place->second];
      before.nproc = before.nproc.value_or(1) + host.nproc.value_or(1);
    }
  }
  if (hosts.empty()) {
    throw invalid_argument(printable(path),
                           ": expected a host a line, as in 'a slots=4', got none");
  }
  return hosts;
}

HostSpecs read_hostfile(const std::string& path) {
  return parse_hostfile(read_small_file(path), path);
}

}  // namespace muster
