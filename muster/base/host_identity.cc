#include "muster/base/host_identity.h"

#include <sys/stat.h>

#include "muster/base/env.h"
#include "muster/base/fd.h"

namespace muster {

namespace {

std::string namespace_inode(const char* name) {
  struct stat info{};
  return ::stat(cat("/proc/self/ns/", name).c_str(), &info) == 0 ? cat(info.st_ino) : "?";
}

}  // namespace

std::string host_identity() {
  if (const auto id = get_env("MUSTER_HOST_ID"))
    return *id;
  std::string boot = "?";
  try {
    boot = std::string(trim(read_file("/proc/sys/kernel/random/boot_id")));
  } catch (const Error&) {
    // No /proc: hosts are then told apart by their namespaces alone.
  }
  return cat(boot, "-", namespace_inode("ipc"), "-", namespace_inode("net"));
}

}  // namespace muster
