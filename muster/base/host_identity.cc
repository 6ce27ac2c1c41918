// How it works: the boot id tells machines and their starts apart, and the namespaces tell
// containers of one machine apart that share no memory or no network.
#include "muster/base/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include "muster/base/env.h"
#include "muster/base/fd.h"

namespace muster {

// The links of /proc/self/ns lead to the namespaces.
uint64_t namespace_inode(const char* name) {
  struct stat info{};
  return ::stat(cat("/proc/self/ns/", name).c_str(), &info) == 0 ? info.st_ino : 0;
}

std::string own_host_name() {
  char name[256] = {};
  const bool has_one = ::gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0';
  return has_one ? name : "localhost";
}

std::string host_identity() {
  if (const auto id = get_env("MUSTER_HOST_ID"))
    return *id;
  // Without /proc, hosts are told apart by less.
  const std::string boot = try_read_file("/proc/sys/kernel/random/boot_id").value_or("?");
  const auto text_of = [](const char* name) {
    const uint64_t inode = namespace_inode(name);
    return inode == 0 ? std::string("?") : cat(inode);
  };
  return cat(trim(boot), "-", text_of("ipc"), "-", text_of("net"));
}

}  // namespace muster
