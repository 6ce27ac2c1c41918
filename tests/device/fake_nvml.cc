// A stand-in for libnvidia-ml.so.1, so that the true dlopen path is tested with no GPU. Its machine
// stands in the environment variable FAKE_NVML, or, read at each nvmlInit, in the file that it
// names (@FILE): sections joined by '|', the first of the driver, then one a device; each is
// key=value joined by ','. Codes are NVML's return codes.
//   driver:  version, init (code), count (code)
//   device:  handle, uuid_code, memory_code, pcie_code (codes); uuid, name, pci, total, free, util,
//            temp, power, power_limit, cc (9.0), ecc, retiring, remapping, pcie_gen, pcie_width,
//            c2c (0, 1), affinity (hexadecimal), procs (pid:bytes joined by '/'), mig (the mode: 0,
//            1), migs (instances joined by ';', each uuid:name:MiB:GPU slices:compute slices, or
//            nothing for a hole), links (NVLinks joined by '/': @N to GPU N, s to a switch, - not
//            active), topo (levels to each GPU joined by ':')
// The declarations are independent of nvml_api.h: a wrong layout there shows here.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Section = std::map<std::string, std::string>;

enum Code {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7
};

std::vector<Section> machine;
std::vector<Section> instances;  // of MIG, of all devices
int open_sessions = 0;
int activity_calls = 0;

std::vector<std::string> pieces(const std::string& text, char separator) {
  std::vector<std::string> all;
  std::stringstream stream(text);
  for (std::string piece; std::getline(stream, piece, separator);)
    all.push_back(piece);
  return all;
}

// Keeps the instances of a device, and where they begin.
void load_instances(Section& device) {
  device["first_mig"] = std::to_string(instances.size());
  for (const auto& text : pieces(device["migs"], ';')) {
    const auto fields = pieces(text, ':');
    Section instance;
    if (fields.size() == 5) {
      instance = {{"uuid", fields[0]},
                  {"mib", fields[2]},
                  {"gpu_slices", fields[3]},
                  {"cpu_slices", fields[4]}};
      if (!fields[1].empty())
        instance["name"] = fields[1];
    }
    instances.push_back(instance);
  }
}

void load() {
  machine.clear();
  instances.clear();
  const char* const given = std::getenv("FAKE_NVML");
  std::string text = given != nullptr ? given : "";
  if (text.starts_with('@')) {
    std::stringstream read;
    read << std::ifstream(text.substr(1)).rdbuf();
    text = read.str();
  }
  for (const auto& part : pieces(text, '|')) {
    Section section;
    for (const auto& pair : pieces(part, ',')) {
      const size_t equals = pair.find('=');
      section[pair.substr(0, equals)] = equals == std::string::npos ? "" : pair.substr(equals + 1);
    }
    load_instances(section);
    machine.push_back(section);
  }
  if (machine.empty())
    machine.emplace_back();
}

int code(const Section& section, const char* key) {
  const auto found = section.find(key);
  return found == section.end() ? 0 : std::atoi(found->second.c_str());
}

bool copy(const Section& section, const char* key, char* out, size_t size) {
  const auto found = section.find(key);
  if (found == section.end() || found->second.size() >= size)
    return false;
  std::memcpy(out, found->second.c_str(), found->second.size() + 1);
  return true;
}

// A handle points at the device's place here, which is its section's number in `machine`; from
// kInstances on, at an instance's.
constexpr size_t kInstances = 128;
char places[256];

const Section& device_of(void* device) {
  const auto place = static_cast<size_t>(static_cast<char*>(device) - places);
  return place < kInstances ? machine.at(place) : instances.at(place - kInstances);
}

int property(void* device, const char* key, unsigned* out) {
  const auto& section = device_of(device);
  const auto found = section.find(key);
  if (found == section.end())
    return not_supported;
  *out = static_cast<unsigned>(std::atoi(found->second.c_str()));
  return success;
}

int number(void* device, const char* key, unsigned* out) {
  ++activity_calls;
  return property(device, key, out);
}

template <class Process>
int list_processes(void* device, unsigned* count, Process* out) {
  ++activity_calls;
  const auto& section = device_of(device);
  const auto found = section.find("procs");
  const auto all = pieces(found == section.end() ? "" : found->second, '/');
  const unsigned room = *count;
  *count = static_cast<unsigned>(all.size());
  if (room < all.size())
    return insufficient_size;
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
  if (result == success)
    ++open_sessions;
  return result;
}

int count(unsigned* out) {
  if (open_sessions == 0)
    return uninitialized;
  *out = static_cast<unsigned>(machine.size() - 1);
  return code(machine[0], "count");
}

int handle(unsigned index, void** device) {
  if (open_sessions == 0)
    return uninitialized;
  if (index + 1 >= machine.size())
    return invalid_argument;
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
  if (const int result = code(device_of(device), "uuid_code"))
    return result;
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
  if (const int result = code(section, "memory_code"))
    return result;
  if (!section.contains("total"))
    return not_supported;
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

struct C2cModeInfo {
  unsigned isC2cEnabled;
};
int nvmlDeviceGetC2cModeInfoV(void* device, C2cModeInfo* out) {
  return property(device, "c2c", &out->isC2cEnabled);
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
  if (!section.contains("ecc"))
    return not_supported;
  *out = type == 1 && counter == 0 ? std::stoull(section.at("ecc")) : 1'000'000;
  return success;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void* device, int* out) {
  const auto& section = device_of(device);
  if (!section.contains("retiring"))
    return not_supported;
  *out = code(section, "retiring");
  return success;
}
int nvmlDeviceGetRemappedRows(
    void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending, unsigned* failed) {
  const auto& section = device_of(device);
  if (!section.contains("remapping"))
    return not_supported;
  *corrected = *uncorrected = *failed = 0;
  *pending = static_cast<unsigned>(code(section, "remapping"));
  return success;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* out) {
  if (const int result = code(device_of(device), "pcie_code"))
    return result;
  return property(device, "pcie_gen", out);
}
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* out) {
  return property(device, "pcie_width", out);
}
int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* out) {
  return number(device, "power_limit", out);
}

int nvmlDeviceGetCpuAffinity(void* device, unsigned words, unsigned long* out) {
  const auto& section = device_of(device);
  if (!section.contains("affinity") || words == 0)
    return not_supported;
  std::memset(out, 0, words * sizeof(*out));
  out[0] = std::stoul(section.at("affinity"), nullptr, 16);
  return success;
}

int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return property(device, "mig", current);
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* out) {
  *out = 7;
  return success;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** out) {
  const auto& section = device_of(device);
  if (index >= pieces(section.at("migs"), ';').size())
    return not_found;
  const size_t at = std::stoul(section.at("first_mig")) + index;
  if (instances.at(at).empty())
    return not_found;
  *out = places + kInstances + at;
  return success;
}
struct Attributes {
  unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount,
      sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
  unsigned long long memorySizeMB;
};
int nvmlDeviceGetAttributes_v2(void* device, Attributes* out) {
  const auto& section = device_of(device);
  if (!section.contains("mib"))
    return not_supported;
  *out = {};
  out->memorySizeMB = std::stoull(section.at("mib"));
  out->gpuInstanceSliceCount = static_cast<unsigned>(std::stoul(section.at("gpu_slices")));
  out->computeInstanceSliceCount = static_cast<unsigned>(std::stoul(section.at("cpu_slices")));
  return success;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  const auto& section = device_of(device);
  if (!section.contains("links"))
    return not_supported;
  const auto all = pieces(section.at("links"), '/');
  if (link >= all.size())
    return invalid_argument;
  *active = all[link] == "-" ? 0 : 1;
  return success;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  const auto end = pieces(device_of(device).at("links"), '/').at(link);
  *type = end[0] == '@' ? 0 : end == "s" ? 2 : 255;
  return success;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, PciInfo* out) {
  const auto end = pieces(device_of(device).at("links"), '/').at(link);
  if (end[0] != '@')
    return not_supported;
  return copy(machine.at(std::stoul(end.substr(1)) + 1), "pci", out->busId, sizeof(out->busId))
             ? success
             : not_supported;
}
int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level) {
  const auto& section = device_of(a);
  if (!section.contains("topo"))
    return not_supported;
  *level = std::stoi(
      pieces(section.at("topo"), ':').at(static_cast<size_t>(static_cast<char*>(b) - places) - 1));
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
