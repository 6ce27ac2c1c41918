// A disk of a few MiB or KiB, to be filled. It needs the right to mount.
#pragma once

#include <sys/mount.h>

#include <string>

namespace muster::test {

class SmallDisk {
 public:
  // `size`: as tmpfs takes it: "6m".
  SmallDisk(std::string path, const std::string& size) : path_(std::move(path)) {
    const std::string options = "size=" + size;
    mounted_ = ::mount("muster-test", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_)
      ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

}  // namespace muster::test
