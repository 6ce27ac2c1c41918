// The few functions and structures of NVML that we call, declared here because no NVML header is needed to
// build, and their loading. For nvml.cc alone.
//
// Source: NVML API reference (structures nvmlPciInfo_t, nvmlMemory_t, nvmlUtilization_t, nvmlProcessInfo_t
// and nvmlProcessInfo_v1_t; enum nvmlReturn_t).
#pragma once

#include <string>

namespace muster::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kNotFound = 6;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kFunctionNotFound = 13;
inline constexpr Return kNoData = 21;

using Device = struct DeviceHandle*;

struct PciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

struct Memory {
  unsigned long long total, free, used;
};

struct Utilization {
  unsigned gpu, memory;
};

struct ProcessV1 {
  unsigned pid;
  unsigned long long used_memory;
};

struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

// A loaded library. Functions that this driver lacks are null.
class Api {
 public:
  // Loads `library`; where that fails the object is not `usable` and `error` says why.
  explicit Api(const std::string& library);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  bool usable() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  // NVML's words for a return code: "GPU is lost".
  std::string text(Return code) const;

  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  Return (*driver_version)(char*, unsigned) = nullptr;
  Return (*count)(unsigned*) = nullptr;
  Return (*handle_by_index)(unsigned, Device*) = nullptr;
  Return (*uuid)(Device, char*, unsigned) = nullptr;
  Return (*name)(Device, char*, unsigned) = nullptr;
  Return (*pci_info)(Device, PciInfo*) = nullptr;
  bool long_bus_id = false;  // pci_info fills bus_id (version 3), not only bus_id_legacy
  Return (*memory)(Device, Memory*) = nullptr;
  Return (*compute_capability)(Device, int*, int*) = nullptr;
  Return (*total_ecc_errors)(Device, int type, int counter, unsigned long long*) = nullptr;
  Return (*utilization)(Device, Utilization*) = nullptr;
  Return (*temperature)(Device, int sensor, unsigned*) = nullptr;
  Return (*power_milliwatts)(Device, unsigned*) = nullptr;
  Return (*processes)(Device, unsigned*, Process*) = nullptr;       // versions 3 and 2
  Return (*processes_v1)(Device, unsigned*, ProcessV1*) = nullptr;  // drivers before 450

 private:
  void load_functions();

  const char* (*error_string_)(Return) = nullptr;
  void* library_ = nullptr;
  std::string error_;
};

}  // namespace muster::nvml
