// Leases keep jobs of muster apart. Programs that take no lease are seen by the driver's list of
// the processes on each GPU: those of other users are named, as this job will share the GPU with
// them.
#include "muster/launch/other_users.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>

#include "muster/base/contains.h"
#include "muster/base/log.h"
#include "muster/base/mapped.h"
#include "muster/base/process_status.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/launch/lease_plan.h"

namespace muster {

namespace {

std::string user_name(uid_t uid) {
  const passwd* const user = ::getpwuid(uid);
  return user == nullptr ? cat("user id ", uid) : cat("user ", user->pw_name);
}

// The process in words; nothing for a process of this user. A process of another container has no
// entry in /proc here.
std::optional<std::string> describe_other(const GpuProcess& process) {
  std::string who;
  struct stat info{};
  if (::stat(cat("/proc/", process.pid).c_str(), &info) != 0) {
    who = "not visible from here";
  } else if (info.st_uid == ::geteuid()) {
    return std::nullopt;
  } else {
    const auto command = printable(process_status(process.pid).command);
    who = cat(text_or(command, "?"), ", ", user_name(info.st_uid));  // "?": it has just ended
  }
  if (process.used_memory_bytes > 0)
    who += cat(", ", format_bytes(process.used_memory_bytes));
  return cat("pid ", process.pid, " (", who, ")");
}

// Whether the list has the GPU or one of its MIG instances.
bool is_wanted(const Gpu& gpu, const std::vector<GpuUuid>& wanted) {
  const auto in_list = [&](const GpuUuid& uuid) {
    return contains(wanted, uuid);
  };
  return in_list(gpu.uuid) || any_of(gpu.mig, in_list, &MigInstance::uuid);
}

}  // namespace

Strings other_users_of(const Host& host, const std::vector<GpuUuid>& wanted) {
  Strings lines;
  for (const Gpu& gpu : host.gpus) {
    if (!is_wanted(gpu, wanted))
      continue;
    const Strings others = mapped_some(gpu.processes, describe_other);
    if (!others.empty())
      lines.push_back(cat("GPU ",
                          gpu.index.value,
                          " (",
                          printable(gpu.uuid.value),
                          "): in use by ",
                          join(others, ", ")));
  }
  return lines;
}

// The job starts all the same: the user may know of them.
void warn_of_other_users(const Host& host, const Plan& plan, int host_index) {
  const auto wanted = mapped(lease_wishes(plan, host_index), &LeaseWish::gpu);
  for (const auto& line : other_users_of(host, wanted))
    log_warning(line, ", whose memory and time this job shares; --gpus idle takes others");
}

}  // namespace muster
