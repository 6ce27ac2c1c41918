// Leases on GPUs: who may use which, among the jobs of one user on one host. A lease is a lock on a
// file, and the lock lives as long as a process has the descriptor open: however its holders end,
// the kernel releases it at once, so nothing stale can be left. Taken by lease_plan.h, shown by
// `muster devices` and `muster doctor`; knows nothing of plans. Other users' work: other_users.h.
//
// One file for each GPU, `gpu-<uuid>`. Its bytes 0 … 999 are the GPU's units: a whole GPU is a lock
// on all of them, a share on as many as it takes. From byte 4096 on lie notes, 1024 bytes for each
// unit, as JSON: a lease's is at its first unit (and at every later gap that it fills). A note is
// for people: without it (a full disk) the lease holds all the same. Source: fcntl(2), "Open file
// description locks".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/clock.h"
#include "muster/base/fd.h"
#include "muster/device/inventory.h"

namespace muster {

inline constexpr int kWholeGpu = 1000;  // units

// The variable that names, in a rank, the descriptors of its job's leases: "7,8", one for each GPU.
inline constexpr auto kLeaseVariable = "MUSTER_LEASE_FD";

struct LeaseNote {
  int pid = 0;  // of who took it; 0: this process
  // When that process began, as /proc says; filled in when the lease is taken.
  uint64_t started_ticks = 0;
  std::string job{};  // the run's id
  std::string program{};
  int64_t since_seconds = 0;  // on the calendar's clock, since 1970; 0: now
  uint64_t memory_bytes = 0;  // of the GPU's memory, reserved; 0: not told
  bool operator==(const LeaseNote&) const = default;
};

struct LeaseHolder {
  int units = 0;
  std::optional<LeaseNote> note{};
  bool alive = false;  // note->pid still runs; otherwise what it started holds the lease
};

using LeaseHolders = std::vector<LeaseHolder>;

// "job 4f2a (train, pid 4711) since 12m5s", "500 of 1000 units: …".
std::string describe(const LeaseHolder& holder);

// Held until destroyed, here and in every process that inherited the descriptor.
class Lease {
 public:
  // `taken`: by this process, and not inherited.
  Lease(GpuUuid gpu, Fd fd, bool taken) : gpu_(std::move(gpu)), fd_(std::move(fd)), taken_(taken) {}

  const GpuUuid& gpu() const { return gpu_; }
  int fd() const {
    return fd_.get();
  }  // closed on exec: who starts a rank names it among those it inherits

  // Ends a lease that was taken here for every process at once: for who knows that all that used
  // the GPU has ended. Without it, another child that is just being started has the descriptor
  // until its program begins.
  void end();

 private:
  GpuUuid gpu_;
  Fd fd_;
  bool taken_;
};
using Leases = std::vector<Lease>;

struct LeaseWish {
  GpuUuid gpu{};
  int units = kWholeGpu;
};

using LeaseWishes = std::vector<LeaseWish>;

struct LeaseRefusal {
  GpuUuid gpu{};
  LeaseHolders holders{};
};

struct LeaseResult {
  Leases leases{};                   // in order of UUID; empty when something was refused
  std::vector<LeaseRefusal> busy{};  // every wish that cannot be had now
};

struct LeaseOptions {
  std::string folder{};  // empty: default_runtime_folder()
  // False: only look. Without the folder nothing is held and nothing can be taken.
  bool create = true;
  // The value of MUSTER_LEASE_FD: leases that this process holds already are no obstacle to it.
  std::string inherited{};
  milliseconds patience{10'000};  // for another process that is just taking a lease
};

class LeaseFolder {
 public:
  // Throws: failed_precondition when the folder is a link, another user's, or open to others; io.
  explicit LeaseFolder(LeaseOptions options = {});

  const std::string& path() const { return path_; }

  // A lease on `units` of the GPU, or nothing when fewer are free. Where an inherited lease covers
  // the GPU, that one again. Blocking: while another process takes one. Throws: invalid_argument (a
  // UUID that is none, units beyond 1 … 1000), timeout, io.
  std::optional<Lease> try_take(const GpuUuid& gpu,
                                int units = kWholeGpu,
                                const LeaseNote& note = {}) const;

  // All wishes or none; nobody else takes a lease in between, so two callers never block each other
  // half-way. Throws: as try_take, and invalid_argument when a GPU is named twice.
  LeaseResult try_take_all(LeaseWishes wishes, const LeaseNote& note = {}) const;

  // Who holds it now, this process included.
  LeaseHolders holders(const GpuUuid& gpu) const;

 private:
  Fd open_file(const std::string& name, bool create) const;
  std::optional<Lease> inherited(const GpuUuid& gpu) const;
  std::optional<Lease> take(const GpuUuid& gpu, int units, const LeaseNote& note) const;
  LeaseHolders read_holders(const GpuUuid& gpu) const;

  LeaseOptions options_;
  std::string path_;
  Fd folder_;
};

}  // namespace muster
