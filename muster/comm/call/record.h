// A collective or message in the rank's activity file (muster/trace). It is written down where it
// is called, and ended by who knows that: a HostOperation in whichever thread completes it, a Work
// of other backends when its caller has waited for it. ProcessGroup and the backends use it; it
// does nothing where no file is open.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>

#include "muster/base/no_copy.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/trace/activity.h"

namespace muster {

// "f32", "bool".
const char* short_type(ScalarType type);

class CallRecord {
 public:
  CallRecord() = default;
  // Begins one. `tensor` may be null; `group` and `operation` are read now alone.
  CallRecord(const char* group,
             const char* operation,
             int64_t sequence,
             const Tensor* tensor,
             int peer = -1,
             int tag = 0);
  CallRecord(CallRecord&& other) noexcept : number_(std::exchange(other.number_, 0)) {}
  CallRecord& operator=(CallRecord&& other) noexcept {
    number_ = std::exchange(other.number_, 0);
    return *this;
  }
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;
  explicit operator bool() const { return number_ != 0; }
  ~CallRecord() = default;  // a call that nobody has ended is under way for good

  void end(bool failed) noexcept {
    const uint64_t number = std::exchange(number_, 0);
    if (number == 0)
      return;
    if (Activity* const activity = Activity::get())
      activity->end_call(number, failed ? CallState::failed : CallState::ended);
  }

 private:
  uint64_t number_ = 0;
};

// While it lives, a record's call goes on in a backend: the backend takes that record, and writes
// down no other.
class OuterRecord : NoCopy {
 public:
  explicit OuterRecord(CallRecord& record) : before_(std::exchange(current_, &record)) {}
  ~OuterRecord() { current_ = before_; }

  // The calling thread's record; nullptr outside of any call. One that was taken is empty.
  static CallRecord* here() { return current_; }

 private:
  CallRecord* const before_;
  static thread_local CallRecord* current_;
};

// The record of a call that a backend begins: the one around it, or else one of its own. It is in
// the group that c10d knows the backend by, with `suffix` where others count that group's calls
// too. Backends inside of another one have no name of a group, and write nothing down.
template <class Backend>
CallRecord backend_record(const Backend& backend,
                          const char* suffix,
                          const char* operation,
                          int64_t sequence,
                          const Tensor* tensor,
                          int peer = -1,
                          int tag = 0) {
  if (Activity::get() == nullptr)
    return {};
  if (CallRecord* const outer = OuterRecord::here())
    return std::move(*outer);
  const std::string& name =
      backend.getGroupDesc().empty() ? backend.getGroupUid() : backend.getGroupDesc();
  if (name.empty())
    return {};
  const std::string shown =
      name == "default_pg" ? "world" : name;  // as Python calls the group of all ranks
  return CallRecord((shown + suffix).c_str(), operation, sequence, tensor, peer, tag);
}

}  // namespace muster
