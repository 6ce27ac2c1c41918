// A base of classes whose objects are neither copied nor moved: each stands for something that is
// there once, or others hold its address.
#pragma once

namespace muster {

class NoCopy {
 public:
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;

 protected:
  NoCopy() = default;
  ~NoCopy() = default;
};

}  // namespace muster
