// A stand-in for libnvidia-ml.so.1, so that the true dlopen path is tested with no GPU. Its machine stands in
// the environment variable FAKE_NVML: sections joined by '|', the first of the driver, then one a device;
// each is key=value joined by ','. Codes are NVML's return codes.
//   driver:  version, init (code), count (code)
//   device:  handle, uuid_code, memory_code (codes); uuid, name, pci, total, free, util, temp, power, cc
//   (9.0),
//            ecc, procs (pid:bytes joined by '/')
// The declarations are independent of nvml_api.h: a wrong layout there shows here.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Section = std::map<std::string, std::string>;

enum Code { success = 0, uninitialized = 1, invalid_argument = 2, not_supported = 3, insufficient_size = 7 };

std::vector<Section> machine;
int open_sessions = 0;
int activity_calls = 0;

std::vector<std::string> pieces(const std::string& text, char separator) {
  std::vector<std::string> all;
  std::stringstream stream(text);
  for (std::string piece; std::getline(stream, piece, separator);) all.push_back(piece);
  return all;
}

void load() {
  machine.clear();
  const char* const text = std::getenv("FAKE_NVML");
  for (const auto& part : pieces(text != nullptr ? text : "", '|')) {
    Section section;
    for (const auto& pair : pieces(part, ',')) {
      const size_t equals = pair.find('=');
      section[pair.substr(0, equals)] = equals == std::string::npos ? "" : pair.substr(equals + 1);
    }
    machine.push_back(section);
  }
  if (machine.empty()) machine.emplace_back();
}

int code(const Section& section, const char* key) {
  const auto found = section.find(key);
  return found == section.end() ? 0 : std::atoi(found->second.c_str());
}

bool copy(const Section& section, const char* key, char* out, size_t size) {
  const auto found = section.find(key);
  if (found == section.end() || found->second.size() >= size) return false;
  std::memcpy(out, found->second.c_str(), found->second.size() + 1);
  return true;
}

// A handle points at the device's place here, which is its section's number in `machine`.
char places[256];

const Section& device_of(void* device) {
  return machine.at(static_cast<size_t>(static_cast<char*>(device) - places));
}

int number(void* device, const char* key, unsigned* out) {
  ++activity_calls;
  const auto& section = device_of(device);
  const auto found = section.find(key);
  if (found == section.end()) return not_supported;
  *out = static_cast<unsigned>(std::atoi(found->second.c_str()));
  return success;
}

template <class Process>
int list_processes(void* device, unsigned* count, Process* out) {
  ++activity_calls;
  const auto& section = device_of(device);
  const auto found = section.find("procs");
  const auto all = pieces(found == section.end() ? "" : found->second, '/');
  const unsigned room = *count;
  *count = static_cast<unsigned>(all.size());
  if (room < all.size()) return insufficient_size;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto pair = pieces(all[i], ':');
    out[i].pid = static_cast<unsigned>(std::stoul(pair.at(0)));
    out[i].usedGpuMemory = pair.at(1) == "none" ? ~0ULL : std::stoull(pair.at(1));
  }
  return success;
}

int init() {
  load();
  const int result = code(machine[0], "init");
  if (result == success) ++open_sessions;
  return result;
}

int count(unsigned* out) {
  if (open_sessions == 0) return uninitialized;
  *out = static_cast<unsigned>(machine.size() - 1);
  return code(machine[0], "count");
}

int handle(unsigned index, void** device) {
  if (open_sessions == 0) return uninitialized;
  if (index + 1 >= machine.size()) return invalid_argument;
  *device = places + index + 1;
  return code(machine[index + 1], "handle");
}

}  // namespace

extern "C" {

int fake_nvml_open_sessions() {
  return open_sessions;
}
int fake_nvml_activity_calls() {
  return activity_calls;
}

int nvmlShutdown() {
  --open_sessions;
  return success;
}

int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  return copy(machine[0], "version", out, size) ? success : not_supported;
}

int nvmlDeviceGetUUID(void* device, char* out, unsigned size) {
  if (const int result = code(device_of(device), "uuid_code")) return result;
  return copy(device_of(device), "uuid", out, size) ? success : not_supported;
}

int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  return copy(device_of(device), "name", out, size) ? success : not_supported;
}

struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* device, Memory* out) {
  const auto& section = device_of(device);
  if (const int result = code(section, "memory_code")) return result;
  if (!section.contains("total")) return not_supported;
  out->total = std::stoull(section.at("total"));
  out->free = std::stoull(section.at("free"));
  out->used = out->total - out->free;
  return success;
}

int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  const auto& section = device_of(device);
  return section.contains("cc") && std::sscanf(section.at("cc").c_str(), "%d.%d", major, minor) == 2
             ? success
             : not_supported;
}

struct Utilization {
  unsigned gpu, memory;
};
int nvmlDeviceGetUtilizationRates(void* device, Utilization* out) {
  return number(device, "util", &out->gpu);
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* out) {
  return number(device, "temp", out);
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  return number(device, "power", out);
}

#ifndef FAKE_NVML_OLD

int nvmlInit_v2() {
  return init();
}
int nvmlDeviceGetCount_v2(unsigned* out) {
  return count(out);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  return handle(index, device);
}

const char* nvmlErrorString(int code) {
  switch (code) {
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    case 999:
      return "Unknown Error";
    default:
      return "Some Error";
  }
}

struct PciInfo {
  char busIdLegacy[16];
  unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
  char busId[32];
};
int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* out) {
  return copy(device_of(device), "pci", out->busId, sizeof(out->busId)) ? success : not_supported;
}

int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* out) {
  const auto& section = device_of(device);
  if (!section.contains("ecc")) return not_supported;
  *out = type == 1 && counter == 0 ? std::stoull(section.at("ecc")) : 1'000'000;
  return success;
}

struct Process {
  unsigned pid;
  unsigned long long usedGpuMemory;
  unsigned gpuInstanceId, computeInstanceId;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, Process* out) {
  return list_processes(device, count, out);
}

#else

int nvmlInit() {
  return init();
}
int nvmlDeviceGetCount(unsigned* out) {
  return count(out);
}
int nvmlDeviceGetHandleByIndex(unsigned index, void** device) {
  return handle(index, device);
}

struct PciInfo {
  char busId[16];
  unsigned domain, bus, device, pciDeviceId;
};
int nvmlDeviceGetPciInfo(void* device, PciInfo* out) {
  return copy(device_of(device), "pci", out->busId, sizeof(out->busId)) ? success : not_supported;
}

struct Process {
  unsigned pid;
  unsigned long long usedGpuMemory;
};
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, Process* out) {
  return list_processes(device, count, out);
}

#endif

}  // extern "C"
