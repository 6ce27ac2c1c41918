// The few functions and structures of NVML that we call, declared here because no NVML header is
// needed to build, and their loading. For the nvml*.cc files alone.
//
// Source: NVML API reference (structures nvmlPciInfo_t, nvmlMemory_t, nvmlUtilization_t,
// nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlDeviceAttributes_t and nvmlC2cModeInfo_v1_t; enums
// nvmlReturn_t, nvmlGpuTopologyLevel_t, nvmlIntNvLinkDeviceType_t).
#pragma once

#include <string>

#include "muster/base/loaded_library.h"
#include "muster/base/no_copy.h"

namespace muster::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
inline constexpr Return kInvalidArgument = 2;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kNotFound = 6;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kFunctionNotFound = 13;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;
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

// Of a MIG instance.
struct Attributes {
  unsigned multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
  unsigned gpu_slices, compute_slices;
  unsigned long long memory_mib;
};

struct C2cMode {
  unsigned is_enabled;
};

// nvmlGpuTopologyLevel_t: the nearest thing above two GPUs.
enum TopologyLevel {
  kSameBoard = 0,
  kOneSwitch = 10,
  kSeveralSwitches = 20,
  kHostBridge = 30,
  kNumaNode = 40,
  kSystem = 50,
};

inline constexpr int kRemoteIsGpu = 0;
inline constexpr int kRemoteIsSwitch = 2;

// Codes that say "not on this kind of GPU" or "not for you", and nothing about the GPU's state.
bool is_harmless(Return code);

// NVML writes "00000000:3B:00.0", Linux "0000:3b:00.0".
std::string linux_pci_address(const std::string& bus_id);

// A loaded library. Functions that this driver lacks are null.
class Api : NoCopy {
  void* library_;  // first: the functions are found in it

  // Null where the library has no function of this name, nor of the one that it had before.
  LoadedLibrary::Address find(const char* function, const char* before = nullptr) const;

 public:
  // Loads `library`; where that fails the object is not `usable` and `error` says why.
  explicit Api(const std::string& library);
  ~Api();

  bool usable() const { return error_.empty(); }
  const std::string& error() const { return error_; }

  // NVML's words for a return code: "GPU is lost".
  std::string text(Return code) const;

  Return (*init)() = find("nvmlInit_v2", "nvmlInit");
  Return (*shutdown)() = find("nvmlShutdown");
  Return (*driver_version)(char*, unsigned) = find("nvmlSystemGetDriverVersion");
  Return (*count)(unsigned*) = find("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount");
  Return (*handle_by_index)(unsigned, Device*) = find("nvmlDeviceGetHandleByIndex_v2",
                                                      "nvmlDeviceGetHandleByIndex");
  Return (*uuid)(Device, char*, unsigned) = find("nvmlDeviceGetUUID");
  Return (*name)(Device, char*, unsigned) = find("nvmlDeviceGetName");
  Return (*pci_info)(Device, PciInfo*) = find("nvmlDeviceGetPciInfo_v3");
  // pci_info fills bus_id (version 3), not only bus_id_legacy.
  bool long_bus_id = pci_info != nullptr;
  Return (*memory)(Device, Memory*) = find("nvmlDeviceGetMemoryInfo");
  Return (*compute_capability)(Device, int*, int*) = find("nvmlDeviceGetCudaComputeCapability");
  Return (*total_ecc_errors)(Device,
                             int type,
                             int counter,
                             unsigned long long*) = find("nvmlDeviceGetTotalEccErrors");
  // Before Ampere; since then remapped_rows.
  Return (*retired_pages_pending)(Device, int*) = find("nvmlDeviceGetRetiredPagesPendingStatus");
  Return (*remapped_rows)(Device,
                          unsigned* corrected,
                          unsigned* uncorrected,
                          unsigned* pending,
                          unsigned* failed) = find("nvmlDeviceGetRemappedRows");
  Return (*max_pcie_generation)(Device, unsigned*) = find("nvmlDeviceGetMaxPcieLinkGeneration");
  Return (*max_pcie_width)(Device, unsigned*) = find("nvmlDeviceGetMaxPcieLinkWidth");
  Return (*cpu_affinity)(Device,
                         unsigned num_words,
                         unsigned long*) = find("nvmlDeviceGetCpuAffinity");

  Return (*utilization)(Device, Utilization*) = find("nvmlDeviceGetUtilizationRates");
  Return (*temperature)(Device, int sensor, unsigned*) = find("nvmlDeviceGetTemperature");
  Return (*power_milliwatts)(Device, unsigned*) = find("nvmlDeviceGetPowerUsage");
  Return (*power_limit_milliwatts)(Device, unsigned*) = find("nvmlDeviceGetPowerManagementLimit");
  Return (*processes)(Device, unsigned*, Process*) =
      find("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2");
  // Of drivers before 450.
  Return (*processes_v1)(Device,
                         unsigned*,
                         ProcessV1*) = find("nvmlDeviceGetComputeRunningProcesses");

  Return (*mig_mode)(Device, unsigned* current, unsigned* pending) = find("nvmlDeviceGetMigMode");
  Return (*max_mig_devices)(Device, unsigned*) = find("nvmlDeviceGetMaxMigDeviceCount");
  Return (*mig_device)(Device,
                       unsigned index,
                       Device*) = find("nvmlDeviceGetMigDeviceHandleByIndex");
  Return (*attributes)(Device, Attributes*) = find("nvmlDeviceGetAttributes_v2");

  Return (*nvlink_state)(Device, unsigned link, int* active) = find("nvmlDeviceGetNvLinkState");
  Return (*nvlink_remote_type)(Device,
                               unsigned link,
                               int*) = find("nvmlDeviceGetNvLinkRemoteDeviceType");
  Return (*nvlink_remote_pci)(Device,
                              unsigned link,
                              PciInfo*) = find("nvmlDeviceGetNvLinkRemotePciInfo_v2");
  Return (*common_ancestor)(Device, Device, int*) = find("nvmlDeviceGetTopologyCommonAncestor");
  Return (*c2c_mode)(Device, C2cMode*) = find("nvmlDeviceGetC2cModeInfoV");  // since driver 535

 private:
  const char* (*error_string_)(Return) = find("nvmlErrorString");
  std::string error_;
};

}  // namespace muster::nvml
