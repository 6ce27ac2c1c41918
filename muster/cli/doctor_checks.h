// The checks of `muster doctor`: each a pure function of the facts (and of the files below their
// root), in the table of doctor_checks.cc. To add one: write it in the file of its kind, declare it
// below, name it in the table, and test it in tests/cli/doctor_test.cc.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "muster/base/strings.h"
#include "muster/cli/doctor_facts.h"

namespace muster {

enum CheckStatus { kOk, kWarn, kFail, kSkipped };

// "ok", "warn", "fail", "skipped".
const char* to_string(CheckStatus status);

struct CheckResult {
  CheckStatus status = kOk;
  std::string text{};  // what was found
  std::string fix{};   // what to do about it; empty when nothing is to be done
  bool operator==(const CheckResult&) const = default;
};

struct Check {
  const char* name;
  CheckResult (*run)(const DoctorFacts& facts);
};

std::span<const Check> doctor_checks();

// doctor_gpu.cc
CheckResult check_driver(const DoctorFacts& facts);
CheckResult check_gpu_health(const DoctorFacts& facts);
CheckResult check_gpu_busy(const DoctorFacts& facts);
CheckResult check_mig(const DoctorFacts& facts);
CheckResult check_peer_access(const DoctorFacts& facts);
CheckResult check_device_order(const DoctorFacts& facts);
CheckResult check_visible_devices(const DoctorFacts& facts);

// doctor_network.cc
CheckResult check_host_name(const DoctorFacts& facts);
CheckResult check_master_route(const DoctorFacts& facts);
CheckResult check_interface_variables(const DoctorFacts& facts);
CheckResult check_ports(const DoctorFacts& facts);

// doctor_limits.cc
CheckResult check_shared_memory(const DoctorFacts& facts);
CheckResult check_open_files(const DoctorFacts& facts);
CheckResult check_locked_memory(const DoctorFacts& facts);
CheckResult check_processes(const DoctorFacts& facts);
CheckResult check_cgroup(const DoctorFacts& facts);

// doctor_jobs.cc
CheckResult check_orphans(const DoctorFacts& facts);
CheckResult check_leases(const DoctorFacts& facts);

// doctor_torch.cc
CheckResult check_torch(const DoctorFacts& facts);

// The rest is for the checks. The names in a folder, sorted; none if it cannot be read.
Strings names_in(const std::string& folder);

// The value of a variable; nothing if it is unset or empty.
std::optional<std::string> variable(const DoctorFacts& facts, const char* name);

}  // namespace muster
