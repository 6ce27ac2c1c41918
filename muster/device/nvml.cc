// Loading the library costs milliseconds, so where no file of a driver is there it is not even
// looked for. What NVML tells is read GPU by GPU (nvml_gpu.h), then their links (nvml_links.h).
#include "muster/device/nvml.h"

#include <unistd.h>
#include <vector>

#include "muster/base/contains.h"
#include "muster/base/env.h"
#include "muster/base/no_copy.h"
#include "muster/base/strings.h"
#include "muster/device/nvml_api.h"
#include "muster/device/nvml_gpu.h"
#include "muster/device/nvml_links.h"

namespace muster {
namespace {

constexpr auto kDefaultLibrary = "libnvidia-ml.so.1";

// An initialised NVML. The destructor gives back what `init` took.
class Session : NoCopy {
 public:
  explicit Session(const nvml::Api& api) : api_(api), code_(api.init()) {}
  ~Session() {
    if (code_ == nvml::kSuccess)
      api_.shutdown();
  }
  nvml::Return code() const { return code_; }

 private:
  const nvml::Api& api_;
  nvml::Return code_;
};

// A GPU without a handle stays in the report, with the error as its health, so that indices are the
// driver's.
Gpu read_one(const nvml::Api& api,
             unsigned index,
             const NvmlOptions& options,
             nvml::Device& device) {
  Gpu gpu;
  if (const auto code = api.handle_by_index(index, &device); code == nvml::kSuccess) {
    gpu = nvml::read_gpu(api, device, options.detail, options.sysroot);
  } else {
    device = nullptr;
    gpu.health = api.text(code);
  }
  gpu.index.value = static_cast<int>(index);
  return gpu;
}

// Whatever fails before the first GPU is read leaves the list empty, with a note that says why.
NvmlReport read_all(const nvml::Api& api, const NvmlOptions& options) {
  NvmlReport report;
  const Session session(api);
  if (session.code() != nvml::kSuccess) {
    report.note = cat("the NVIDIA driver does not answer: ", api.text(session.code()));
    return report;
  }
  char version[96] = {};
  if (api.driver_version && api.driver_version(version, sizeof(version)) == nvml::kSuccess) {
    report.driver_version = version;
  }
  unsigned count = 0;
  if (const auto code = api.count(&count); code != nvml::kSuccess) {
    report.note = cat("the NVIDIA driver does not say how many GPUs it has: ", api.text(code));
    return report;
  }
  std::vector<nvml::Device> devices(count, nullptr);
  for (unsigned i = 0; i < count; ++i)
    report.gpus.push_back(read_one(api, i, options, devices[i]));
  if (options.links)
    report.links = nvml::read_links(api, devices, report.gpus);
  if (count == 0)
    report.note = cat("NVIDIA driver ", report.driver_version, " is loaded, but has no GPU");
  return report;
}

// `paths` are below `sysroot`.
bool any_exists(const std::string& sysroot, const Strings& paths) {
  return any_of(paths,
                [&](const auto& path) { return access((sysroot + path).c_str(), F_OK) == 0; });
}

}  // namespace

// A library that is named is taken as it is, which is what tests and unusual machines need.
NvmlReport probe_nvml(const NvmlOptions& options) {
  std::string library = options.library;
  if (library.empty())
    library = get_env("MUSTER_NVML_LIBRARY").value_or("");
  if (library.empty()) {
    if (!any_exists(options.sysroot, options.driver_files)) {
      const std::string missing =
          options.driver_files.empty() ? "" : cat(" (no ", options.driver_files[0], ")");
      return {.note = cat("no NVIDIA driver is loaded", missing), .has_driver = false};
    }
    library = kDefaultLibrary;
  }
  const nvml::Api api(library);
  if (!api.usable())
    return {.note = cat("NVML: ", api.error())};
  return read_all(api, options);
}

}  // namespace muster
