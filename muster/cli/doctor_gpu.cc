// The checks of GPUs, their driver and CUDA's variables.
#include <cstdint>
#include <string>

#include "muster/base/contains.h"
#include "muster/base/fd.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/base/units.h"
#include "muster/cli/doctor_checks.h"
#include "muster/device/links.h"
#include "muster/device/visible_devices.h"

namespace muster {

namespace {

// Checks of GPUs do not apply to a machine without any.
CheckResult no_gpus() {
  return {kSkipped, "no GPU"};
}

// Returns the PCI addresses of the NVIDIA GPUs that the kernel sees, with a driver or without.
Strings nvidia_hardware(const std::string& root) {
  const auto folder = root + "/sys/bus/pci/devices";
  return filtered(names_in(folder), [&](const auto& name) {
    const auto device = cat(folder, "/", name);
    return trim(try_read_file(device + "/vendor").value_or("")) == "0x10de" &&
           try_read_file(device + "/class").value_or("").starts_with("0x03");
  });
}

// "NVRM version: NVIDIA UNIX … Kernel Module  570.86.15  Release …" → "570.86.15".
std::string kernel_module_version(const std::string& root) {
  const auto text = try_read_file(root + "/proc/driver/nvidia/version").value_or("");
  const auto line = text.substr(0, text.find('\n'));
  for (const auto& word : split(line, ' ')) {
    const bool is_number = word.find_first_not_of("0123456789.") == npos;
    if (is_number && contains(word, '.'))
      return word;
  }
  return {};
}

// The number is nvidia-smi's, by which people know it.
std::string gpu_name(const Gpu& gpu) {
  return cat("GPU ", gpu.index.value);
}

// A process of another container has no name here.
std::string process_name(const std::string& root, int pid) {
  const std::string name(trim(try_read_file(cat(root, "/proc/", pid, "/comm")).value_or("")));
  return cat(pid, framed(" (", name, ")"));
}

// Whether the GPU's memory is used by processes that this container, or this user, cannot see.
bool is_used_by_others(const Gpu& gpu, uint64_t used) {
  const bool shows_no_process = gpu.processes.empty() && !gpu.mig_enabled;
  return shows_no_process && used > gpu.memory_total_bytes / 10;
}

// Whether the IOMMU translates the addresses of devices, as the kernel was started.
bool iommu_translates(const std::string& root) {
  if (names_in(root + "/sys/class/iommu").empty())
    return false;
  const auto kernel = try_read_file(root + "/proc/cmdline").value_or("");
  return !has_text(kernel, "iommu=pt") && !has_text(kernel, "iommu=off");
}

}  // namespace

// The kernel's module and the library may differ after an update, and either may be missing.
CheckResult check_driver(const DoctorFacts& facts) {
  if (!facts.probe_error.empty()) {
    return {kFail, facts.probe_error, "correct what the error names"};
  }
  const auto module = kernel_module_version(facts.root);
  const auto& library = facts.host.driver_version;
  if (!module.empty() && !library.empty() && module != library) {
    return {kFail,
            cat("kernel module ", module, ", library ", library),
            "restart the machine: the driver was replaced while it was in use"};
  }
  if (!facts.host.gpus.empty()) {
    return {kOk, cat(framed("NVIDIA ", library, ", "), plural(facts.host.gpus.size(), "GPU"))};
  }
  if (!module.empty()) {
    return {kFail,
            cat("kernel module ", module, " is loaded, but: ", facts.host.gpu_note),
            "run nvidia-smi; in a container, start it with --gpus all"};
  }
  const auto hardware = nvidia_hardware(facts.root);
  if (hardware.empty())
    return {kSkipped, cat("no GPU: ", facts.host.gpu_note)};
  return {kWarn,
          cat("NVIDIA GPU at ", join(hardware, ", "), ", but: ", facts.host.gpu_note),
          "install NVIDIA's driver, or load it (modprobe nvidia); in a container, start it with "
          "--gpus all"};
}

// A sick GPU is a failure; memory errors that were survived are a warning.
CheckResult check_gpu_health(const DoctorFacts& facts) {
  if (facts.host.gpus.empty())
    return no_gpus();
  Strings sick;
  Strings errors;
  for (const Gpu& gpu : facts.host.gpus) {
    if (gpu.health != kHealthy)
      sick.push_back(cat(gpu_name(gpu), ": ", gpu.health));
    // A GPU that does not count errors has none here.
    const uint64_t ecc = gpu.ecc_uncorrected_errors.value_or(0);
    if (ecc > 0)
      errors.push_back(cat(gpu_name(gpu), ": ", ecc, " uncorrected memory errors"));
  }
  if (!sick.empty()) {
    return {kFail,
            join(sick, "; "),
            "see dmesg for \"Xid\"; reset it (nvidia-smi -r -i INDEX) or restart the machine; "
            "until then jobs leave it out"};
  }
  if (!errors.empty()) {
    return {kWarn, join(errors, "; "), "reset the GPU when it is free (nvidia-smi -r -i INDEX)"};
  }
  return {kOk, cat("all ", facts.host.gpus.size(), " healthy")};
}

// Other users' processes do not keep a job from starting, but take its memory and time.
CheckResult check_gpu_busy(const DoctorFacts& facts) {
  if (facts.host.gpus.empty())
    return no_gpus();
  Strings busy;
  for (const Gpu& gpu : facts.host.gpus) {
    const auto processes = mapped(gpu.processes, [&](const GpuProcess& process) {
      return process_name(facts.root, process.pid);
    });
    const uint64_t used = gpu.memory_used_bytes();
    if (!processes.empty())
      busy.push_back(cat(gpu_name(gpu), ": ", join(processes, ", ")));
    if (is_used_by_others(gpu, used))
      busy.push_back(cat(gpu_name(gpu), ": ", format_bytes(used), " used by processes not shown"));
  }
  if (busy.empty())
    return {kOk, "none"};
  return {kWarn,
          join(busy, "; "),
          "choose other GPUs (--gpus idle, --gpus free:2), or end those processes"};
}

// A GPU in MIG mode without an instance cannot be used at all.
CheckResult check_mig(const DoctorFacts& facts) {
  if (facts.host.gpus.empty())
    return no_gpus();
  Strings split_gpus;
  Strings unusable;
  for (const Gpu& gpu : facts.host.gpus) {
    if (!gpu.mig_enabled)
      continue;
    if (gpu.mig.empty())
      unusable.push_back(gpu_name(gpu));
    split_gpus.push_back(cat(gpu_name(gpu), ": ", plural(gpu.mig.size(), "instance")));
  }
  if (!unusable.empty()) {
    return {kWarn,
            cat("on, with no instance: ", join(unusable, ", ")),
            "make instances (nvidia-smi mig -cgi 9,9 -C) or turn it off (nvidia-smi -mig 0)"};
  }
  return {kOk, text_or(join(split_gpus, "; "), "off")};
}

// GPUs that only PCIe connects copy to each other through it, which an IOMMU can break.
CheckResult check_peer_access(const DoctorFacts& facts) {
  const Host& host = facts.host;
  if (host.gpus.size() < 2)
    return {kSkipped, "fewer than two GPUs"};
  StringSet kinds;
  bool pci_only = false;
  for (const size_t i : indices_of(host.gpu_links)) {
    for (size_t j = i + 1; j < host.gpu_links[i].size(); ++j) {
      const LinkKind kind = host.gpu_links[i][j].kind;
      if (kind != LinkKind::unknown)
        kinds.insert(to_string(host.gpu_links[i][j]));
      pci_only |= !is_one_of(kind, LinkKind::nvlink, LinkKind::xgmi);
    }
  }
  if (kinds.empty()) {
    return {kWarn,
            "the links between the GPUs are not known",
            "see `nvidia-smi topo -m` and `nvidia-smi topo -p2p r`"};
  }
  const auto text = cat("links: ", join(kinds, ", "));
  if (pci_only && iommu_translates(facts.root)) {
    return {
        kWarn,
        text + "; the IOMMU translates addresses, which can slow or hang peer access over PCIe",
        "start the kernel with iommu=pt and turn ACS off, or set NCCL_P2P_DISABLE=1 if jobs hang"};
  }
  return {kOk, text};
}

// CUDA numbers GPUs by speed unless it is told otherwise, which matters if they differ.
CheckResult check_device_order(const DoctorFacts& facts) {
  const auto order = variable(facts, "CUDA_DEVICE_ORDER");
  if (order && *order != "PCI_BUS_ID") {
    return {kWarn,
            cat(*order, ": CUDA then numbers GPUs in another order than nvidia-smi and muster"),
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID (muster run does)"};
  }
  // GPUs of one model are equally fast, and then CUDA keeps the order of their addresses.
  const auto models = mapped_to<StringSet>(facts.host.gpus, &Gpu::model);
  if (!order && models.size() > 1) {
    return {kWarn,
            "unset, and the GPUs differ: in programs that muster does not start, CUDA gives number "
            "0 to the fastest",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID (muster run does)"};
  }
  return {kOk, order.value_or("unset; muster run sets PCI_BUS_ID")};
}

// A mask that names what is not there hides GPUs without a word from CUDA.
CheckResult check_visible_devices(const DoctorFacts& facts) {
  const auto found = facts.environment.find("CUDA_VISIBLE_DEVICES");
  if (found == facts.environment.end())
    return {kOk, "unset: every GPU is visible"};
  if (facts.host.gpus.empty())
    return {kSkipped, "set, but no GPU"};
  const VisibleDevices visible = visible_devices(facts.host.gpus, found->second);
  auto names =
      mapped(visible.gpus, [&](const size_t gpu) { return gpu_name(facts.host.gpus[gpu]); });
  append_mapped(names, visible.mig, [&](const VisibleMig& mig) {
    return facts.host.gpus.at(mig.gpu).mig.at(mig.instance).uuid.value;
  });
  const auto text = cat("'", found->second, "' shows ", text_or(join(names, ", "), "no GPU"));
  if (!visible.remark.empty()) {
    return {kWarn,
            cat(text, "; ", visible.remark),
            "unset it, or correct it; `muster devices` lists the GPUs"};
  }
  if (names.empty())
    return {kWarn, text, "unset it to use the GPUs"};
  return {kOk, text + "; muster chooses among these"};
}

}  // namespace muster
