// The checks of names, addresses, interfaces and ports.
#include <string>

#include "muster/base/contains.h"
#include "muster/base/route.h"
#include "muster/base/strings.h"
#include "muster/cli/doctor_checks.h"

namespace muster {

namespace {

// Whether a value of NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that is there. The
// names are prefixes; '^' before them excludes, and '=' wants exact names. Source: NCCL user guide.
bool names_an_interface(const std::string& value, const Strings& interfaces) {
  if (value.starts_with('^'))
    return true;
  const bool exact = value.starts_with('=');
  const std::string names = exact ? value.substr(1) : value;
  for (const auto& name : split(names, ',')) {
    const auto wanted = name.substr(0, name.find(':'));  // "eth0:1234" gives the port too
    const auto is_meant = [&](const std::string& interface) {
      return exact ? interface == wanted : interface.starts_with(wanted);
    };
    if (any_of(interfaces, is_meant))
      return true;
  }
  return false;
}

}  // namespace

// Some distributions let the host's own name resolve to loopback, which ranks would then tell
// others.
CheckResult check_host_name(const DoctorFacts& facts) {
  const auto& name = facts.host.name;
  if (!facts.resolve_error.empty()) {
    return {kWarn,
            cat(name, " does not resolve: ", facts.resolve_error),
            "enter it in /etc/hosts, or give addresses instead of names"};
  }
  const auto& addresses = facts.host_addresses;
  if (!addresses.empty() && all_of(addresses, is_loopback_address)) {
    return {kWarn,
            cat(name,
                " resolves to ",
                join(addresses, ", "),
                " (loopback), which other hosts cannot reach"),
            "for a job on several hosts, give this host's address with --master-addr, or correct "
            "/etc/hosts"};
  }
  return {kOk, cat(name, " resolves to ", join(addresses, ", "))};
}

// The master's name may lead to loopback on the master itself alone.
CheckResult check_master_route(const DoctorFacts& facts) {
  if (facts.master.empty()) {
    return {kSkipped, "MASTER_ADDR is not set; muster doctor --master HOST checks one"};
  }
  if (!facts.master_error.empty()) {
    return {kFail, facts.master_error, "correct the name, or see `ip route`"};
  }
  auto text = cat("to ", facts.master, " from ", facts.master_address);
  if (!facts.master_interface.empty())
    text += cat(" (", facts.master_interface, ")");
  // On the master itself loopback is right.
  const bool local = is_loopback_address(facts.master) || facts.master == facts.host.name;
  if (is_loopback_address(facts.master_address) && !local) {
    return {kWarn,
            text + "; that name is this host itself, on loopback",
            "if the master is another host, correct /etc/hosts"};
  }
  return {kOk, text};
}

// A wrong name here fails only when the first group is made.
CheckResult check_interface_variables(const DoctorFacts& facts) {
  const Strings interfaces = names_in(facts.root + "/sys/class/net");
  Strings set;
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const auto value = variable(facts, name);
    if (!value)
      continue;
    if (!interfaces.empty() && !names_an_interface(*value, interfaces)) {
      return {kFail,
              cat(name, "=", *value, ", but there are ", join(interfaces, ", ")),
              cat("unset ", name, ": the interface is then chosen by the route to the master")};
    }
    set.push_back(cat(name, "=", *value));
  }
  if (set.empty())
    return {kOk, "chosen by the route to the master"};
  return {kOk, join(set, ", ")};
}

// Ranks bind ports of their own choice, and the one that MASTER_PORT names.
CheckResult check_ports(const DoctorFacts& facts) {
  if (!facts.port_error.empty()) {
    return {kFail,
            cat("no port can be bound on loopback: ", facts.port_error),
            "bring loopback up (ip link set lo up), and see net.ipv4.ip_local_port_range"};
  }
  if (!facts.master_port_holder.empty()) {
    return {kWarn,
            cat("MASTER_PORT=",
                variable(facts, "MASTER_PORT").value_or(""),
                " is in use by ",
                facts.master_port_holder),
            "end that, or unset MASTER_PORT to have a free one chosen"};
  }
  return {kOk, "a port can be bound on loopback"};
}

}  // namespace muster
